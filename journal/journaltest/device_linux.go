package journaltest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A Device is a disk image that the kernel reads and writes through FUSE, so
// that a file system can be mounted on it and every block that it writes, and
// every flush, is seen in its order. From those come disks as a power cut could
// have left them (the idea is that of dm-log-writes and of LazyFS).
//
// It answers the few requests that a loop device makes of one file
// (linux/fuse.h, protocol 7.31), and nothing else.
type Device struct {
	Path string

	fd   int
	done chan struct{}
	mu   sync.Mutex
	img  []byte
	base []byte
	log  []deviceOp
	busy func() bool
	fail func(data []byte) bool
}

// Fail makes the writes fail, and store nothing, of which f says so; nil ends that.
func (d *Device) Fail(f func(data []byte) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = f
}

type deviceOp struct {
	off  int64
	data []byte // nil for a flush
	busy bool   // an append was under way
}

// MountDevice makes a device of an image. busy is asked at every request
// whether an append is under way.
func MountDevice(t testing.TB, img []byte, busy func() bool) *Device {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := &Device{Path: path, fd: mountFUSE(t, path, "100600"), done: make(chan struct{}), img: img, base: slices.Clone(img), busy: busy}
	go func() {
		defer close(d.done)
		serve(d.fd, d.answer)
	}()
	t.Cleanup(func() { // after a test that failed on its way
		if d.fd >= 0 {
			_ = syscall.Unmount(path, syscall.MNT_DETACH)
		}
	})
	return d
}

func mountFUSE(t testing.TB, path, mode string) (fd int) {
	t.Helper()
	fd, err := syscall.Open("/dev/fuse", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err == nil {
		err = syscall.Mount("steno-test", path, "fuse", syscall.MS_NOSUID|syscall.MS_NODEV,
			fmt.Sprintf("fd=%d,rootmode=%s,user_id=%d,group_id=%d", fd, mode, os.Getuid(), os.Getgid()))
	}
	if err == syscall.EPERM {
		t.Skip("a container without the right to mount")
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// MountEmpty mounts an empty file system of FUSE on a folder, until the test
// ends. It says how often something was to be made there, which fails.
func MountEmpty(t testing.TB, dir string) (asked func() int64) {
	t.Helper()
	var made atomic.Int64
	fd, done := mountFUSE(t, dir, "40700"), make(chan struct{})
	go func() {
		defer close(done)
		serve(fd, func(opcode uint32, in []byte) ([]byte, syscall.Errno) {
			switch opcode {
			case 26: // INIT
				return fuseInit(in), 0
			case 3: // GETATTR
				return fuseAttr(0, syscall.S_IFDIR|0o700), 0
			case 17: // STATFS
				return make([]byte, 80), 0
			case 27: // OPENDIR
				return make([]byte, 16), 0
			case 28, 29, 34: // READDIR, RELEASEDIR, ACCESS
				return nil, 0
			case 1: // LOOKUP
				return nil, syscall.ENOENT
			case 2, 36, 42: // FORGET, INTERRUPT, BATCH_FORGET
				return nil, noReply
			case 6, 8, 9, 13, 35: // SYMLINK, MKNOD, MKDIR, LINK, CREATE
				made.Add(1)
				return nil, syscall.EROFS
			}
			return nil, syscall.ENOSYS
		})
	}()
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
			return
		}
		<-done
		syscall.Close(fd)
	})
	return made.Load
}

// Unmount ends it; nothing may be mounted on it any more.
func (d *Device) Unmount(t testing.TB) {
	t.Helper()
	// The loop device lets go of it a moment after its own file system.
	err := syscall.Unmount(d.Path, 0)
	for late := time.Now().Add(Deadline); err == syscall.EBUSY && time.Now().Before(late); err = syscall.Unmount(d.Path, 0) {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		t.Fatalf("unmount %s: %v", d.Path, err)
	}
	<-d.done
	if err := syscall.Close(d.fd); err != nil {
		t.Error(err)
	}
	d.fd = -1
}

// Position is how many writes and flushes there have been.
func (d *Device) Position() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return int64(len(d.log))
}

const deviceWrite = 1 << 20 // the most that one request writes

func serve(fd int, answer func(opcode uint32, in []byte) ([]byte, syscall.Errno)) {
	buf := make([]byte, deviceWrite+8192)
	for {
		n, err := syscall.Read(fd, buf)
		if err == syscall.EINTR || err == syscall.ENOENT || err == syscall.EAGAIN {
			continue
		}
		if err != nil {
			return // unmounted
		}
		in := buf[:n]
		reply, errno := answer(binary.LittleEndian.Uint32(in[4:]), in[40:])
		if errno == noReply {
			continue
		}
		out := make([]byte, 16, 16+len(reply))
		binary.LittleEndian.PutUint32(out, uint32(16+len(reply)))
		binary.LittleEndian.PutUint32(out[4:], uint32(-int32(errno)))
		copy(out[8:16], in[8:16])
		_, _ = syscall.Write(fd, append(out, reply...)) // who asked may be gone
	}
}

const noReply = syscall.Errno(0xffff)

func (d *Device) answer(opcode uint32, in []byte) ([]byte, syscall.Errno) {
	le := binary.LittleEndian
	switch opcode {
	case 26: // INIT
		return fuseInit(in), 0
	case 3, 4: // GETATTR, SETATTR
		return fuseAttr(len(d.img), syscall.S_IFREG|0o600), 0
	case 14: // OPEN
		return make([]byte, 16), 0
	case 15: // READ
		off, size := int(le.Uint64(in[8:])), int(le.Uint32(in[16:]))
		d.mu.Lock()
		defer d.mu.Unlock()
		off = min(off, len(d.img))
		return slices.Clone(d.img[off:min(off+size, len(d.img))]), 0
	case 16: // WRITE
		off, size := int64(le.Uint64(in[8:])), le.Uint32(in[16:])
		data := slices.Clone(in[40 : 40+size])
		d.mu.Lock()
		defer d.mu.Unlock()
		if off+int64(size) > int64(len(d.img)) {
			return nil, syscall.ENOSPC
		}
		if d.fail != nil && d.fail(data) {
			return nil, syscall.EIO
		}
		copy(d.img[off:], data)
		d.log = append(d.log, deviceOp{off, data, d.busy()})
		out := make([]byte, 8)
		le.PutUint32(out, size)
		return out, 0
	case 20: // FSYNC
		d.mu.Lock()
		defer d.mu.Unlock()
		d.log = append(d.log, deviceOp{busy: d.busy()})
		return nil, 0
	case 18, 25, 38: // RELEASE, FLUSH, DESTROY
		return nil, 0
	case 2, 36, 42: // FORGET, INTERRUPT, BATCH_FORGET
		return nil, noReply
	}
	return nil, syscall.ENOSYS
}

func fuseInit(in []byte) []byte {
	le, out := binary.LittleEndian, make([]byte, 64)
	le.PutUint32(out, 7)
	le.PutUint32(out[4:], 31)
	copy(out[8:12], in[8:12])          // read ahead
	le.PutUint32(out[12:], 1<<5|1<<22) // large writes, max_pages
	le.PutUint32(out[20:], deviceWrite)
	le.PutUint32(out[24:], 1)
	le.PutUint16(out[28:], deviceWrite/4096)
	return out
}

func fuseAttr(size int, mode uint32) []byte {
	le, out := binary.LittleEndian, make([]byte, 104)
	le.PutUint64(out, 3600)
	le.PutUint64(out[16:], 1)
	le.PutUint64(out[24:], uint64(size))
	le.PutUint64(out[32:], uint64(size/512))
	le.PutUint32(out[76:], mode)
	le.PutUint32(out[80:], 1)
	le.PutUint32(out[96:], 4096)
	return out
}

// Cuts yields disks as power cuts at these positions, of which each is above 0,
// could have left them: all that was flushed, and of what was written since then
// any choice of writes, of some any choice of sectors. The image is valid until
// the next one. It is for a device that was unmounted, and may be called again.
func (d *Device) Cuts(r *rand.Rand, at []int64, yield func(img []byte, position int64, busy bool)) {
	flushed, done := d.img, int64(0)
	copy(flushed, d.base)
	cut := make([]byte, len(flushed))
	for _, end := range slices.Sorted(slices.Values(at)) {
		start := end
		for start > done && d.log[start-1].data != nil {
			start--
		}
		for ; done < start; done++ {
			copy(flushed[d.log[done].off:], d.log[done].data)
		}
		copy(cut, flushed)
		for _, op := range d.log[start:end] {
			switch r.IntN(3) {
			case 0:
				copy(cut[op.off:], op.data)
			case 1:
				for s := 0; s < len(op.data); s += sector {
					if r.IntN(2) == 0 {
						copy(cut[op.off+int64(s):], op.data[s:min(s+sector, len(op.data))])
					}
				}
			}
		}
		yield(cut, end, d.log[end-1].busy)
	}
}

// Run runs a program of the system, which must succeed.
func Run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
}
