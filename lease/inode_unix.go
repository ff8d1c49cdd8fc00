//go:build unix

package lease

import (
	"os"
	"syscall"
)

// inode gives the number of names and the owner of a file.
func inode(fi os.FileInfo) (links uint64, uid uint32) {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink), st.Uid
	}
	return 1, 0
}
