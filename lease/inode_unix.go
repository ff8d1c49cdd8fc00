//go:build unix

package lease

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// inode gives the number of names and the owner of a file.
func inode(fi os.FileInfo) (links uint64, uid uint32) {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink), st.Uid
	}
	return 1, 0
}

// A node is which file something is, whatever its name.
type node struct{ dev, ino uint64 }

func nodeOf(fi os.FileInfo) node {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return node{uint64(st.Dev), uint64(st.Ino)}
	}
	return node{}
}

func seenNode(st *unix.Stat_t) node { return node{uint64(st.Dev), uint64(st.Ino)} }
