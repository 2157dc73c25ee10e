package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Path is the state file of the node under root.
func Path(root string) string {
	if strings.HasSuffix(root, PluginRoot) {
		return filepath.Join(root, "socket")
	}
	return filepath.Join(root, "state", "node")
}

// ErrNoGPU is returned for an index that the node has no GPU for.
var ErrNoGPU = errors.New("no such GPU")

// Body is one consistent view of a node, with pointers into memory that the caller owns for the duration of a call.
type Body struct {
	Node *Node
	GPUs []*GPU
	file *File // the file of this body, nil while that is made
}

// GPU returns the GPU with that index.
func (b *Body) GPU(i int) (*GPU, error) {
	if i < 0 || i >= len(b.GPUs) {
		return nil, fmt.Errorf("%w: index %d; the node has %d GPUs", ErrNoGPU, i, len(b.GPUs))
	}
	return b.GPUs[i], nil
}

// File is an open state file. Its methods may be called from many goroutines and many processes at once.
type File struct {
	path string
	file *os.File
	data []byte
	// shape is the header's content when it was found valid; the file may be damaged later.
	shape shape
	// namespace is this process's PID namespace.
	namespace uint32
	// bodies are the two copies, as views of data.
	bodies  [2]*Body
	cleanup runtime.Cleanup
	// write serialises the writers of this process; the file lock does so between processes.
	write sync.Mutex
}

// shape is the layout of a file.
type shape struct{ bodyOffset, bodySize, gpus int }

func shapeOf(gpus int) shape { return shape{bodyOffset(), bodySize(gpus), gpus} }

const align = 64

func bodySize(gpus int) int {
	n := int(unsafe.Sizeof(Node{})) + gpus*int(unsafe.Sizeof(GPU{}))
	return (n + align - 1) / align * align
}

func bodyOffset() int {
	return (int(unsafe.Sizeof(Header{})) + align - 1) / align * align
}

// Create writes a new state file for that many GPUs and replaces an old one atomically (rename). fill sets the first contents.
// Clients with the old file open get a sign to open the new one.
func Create(root string, gpus int, fill func(*Body) error) error {
	if gpus > MaxGPUs {
		return fmt.Errorf("a node has at most %d GPUs, not %d", MaxGPUs, gpus)
	}
	path := Path(root)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	size := bodyOffset() + 2*bodySize(gpus)
	data := alignedBytes(size)
	h := header(data)
	copy(h.Magic[:], Magic)
	h.Version, h.FileSize = Version, uint32(size)
	h.BodyOffset, h.BodySize, h.GPUCount = uint32(bodyOffset()), uint32(bodySize(gpus)), uint32(gpus)
	if err := fill(shapeOf(gpus).body(data, 0)); err != nil {
		return err
	}
	old, oldErr := Open(root)
	if oldErr == nil {
		defer func() { _ = old.Close() }() // only a mapping is given up
	}
	if err := writeFile(path, data); err != nil {
		return fmt.Errorf("write node state: %w", err)
	}
	if oldErr == nil {
		old.retire()
	}
	return nil
}

// alignedBytes allocates memory in which 8-byte numbers may be accessed atomically.
func alignedBytes(size int) []byte {
	words := make([]uint64, (size+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*8)[:size]
}

// writeFile atomically replaces path by data. The mode lets every user read and write, as /dev/nvidiactl does.
func writeFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".node-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // gone already after the rename
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o666), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// Open maps the state file of the node under root and checks it. Without permission to write, only Read works.
func Open(root string) (*File, error) {
	path := Path(root)
	prot := unix.PROT_READ | unix.PROT_WRITE
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
		prot = unix.PROT_READ
		f, err = os.Open(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open node state: %w", err)
	}
	data, err := mapFile(f, prot)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map node state %s: %w", path, err), f.Close())
	}
	s := &File{path: path, file: f, data: data, namespace: PIDNamespace()}
	s.shape = shapeOf(int(min(header(data).GPUCount, MaxGPUs)))
	if err := validate(data); err != nil {
		return nil, errors.Join(fmt.Errorf("node state %s: %w; render the node again", path, err), s.Close())
	}
	s.bodies = [2]*Body{s.of(s.shape.body(data, 0)), s.of(s.shape.body(data, 1))}
	// A file that is not closed is unmapped with its last reference.
	s.cleanup = runtime.AddCleanup(s, func(data []byte) { _ = unix.Munmap(data) }, data)
	return s, nil
}

func mapFile(f *os.File, prot int) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() < int64(unsafe.Sizeof(Header{})) || info.Size() > 1<<30 {
		return nil, fmt.Errorf("it has %d bytes, which is not the size of a state file", info.Size())
	}
	return unix.Mmap(int(f.Fd()), 0, int(info.Size()), prot, unix.MAP_SHARED)
}

// validate checks that every offset in the header is inside the file.
func validate(data []byte) error {
	h := header(data)
	switch {
	case string(h.Magic[:]) != Magic:
		return errors.New("it does not start with " + Magic)
	case h.Version != Version:
		return fmt.Errorf("its layout is version %d; this program reads %d", h.Version, Version)
	case h.GPUCount > MaxGPUs:
		return fmt.Errorf("it names %d GPUs; at most %d are possible", h.GPUCount, MaxGPUs)
	case int(h.BodyOffset) != bodyOffset(), int(h.BodySize) != bodySize(int(h.GPUCount)),
		int(h.FileSize) != len(data), len(data) != bodyOffset()+2*bodySize(int(h.GPUCount)):
		return fmt.Errorf("its sizes do not fit together (file %d, body %d at %d, %d GPUs)", h.FileSize, h.BodySize, h.BodyOffset, h.GPUCount)
	}
	return nil
}

// Close unmaps the file.
func (f *File) Close() error {
	f.cleanup.Stop()
	err := unix.Munmap(f.data)
	f.data = nil
	return errors.Join(err, f.file.Close())
}

func header(data []byte) *Header {
	return (*Header)(unsafe.Pointer(unsafe.SliceData(data)))
}

// bytes returns the bytes of the body with that number (0 or 1) in a file.
func (s shape) bytes(data []byte, which uint64) []byte {
	start := s.bodyOffset + int(which)*s.bodySize
	return data[start : start+s.bodySize]
}

func (s shape) body(data []byte, which uint64) *Body {
	return bodyOf(s.bytes(data, which), s.gpus)
}

func bodyOf(data []byte, gpus int) *Body {
	b := &Body{Node: (*Node)(unsafe.Pointer(unsafe.SliceData(data)))}
	for i := range gpus {
		at := int(unsafe.Sizeof(Node{})) + i*int(unsafe.Sizeof(GPU{}))
		b.GPUs = append(b.GPUs, (*GPU)(unsafe.Pointer(&data[at])))
	}
	return b
}

// of assigns a body to this file.
func (f *File) of(b *Body) *Body {
	b.file = f
	return b
}

// alive reports whether the file still has all its bytes: touching the mapping of a truncated file would kill the process.
func (f *File) alive() error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.file.Fd()), &st); err != nil {
		return fmt.Errorf("node state %s: %w", f.path, err)
	}
	if st.Size < int64(len(f.data)) {
		return fmt.Errorf("node state %s was cut to %d bytes; render the node again", f.path, st.Size)
	}
	return nil
}

// Replaced reports whether a newer file has replaced this one.
func (f *File) Replaced() bool {
	return f.alive() != nil || atomic.LoadUint32(&header(f.data).Replaced) != 0
}

// Read copies the current body, so that the result stays as it was.
func (f *File) Read() (*Body, error) {
	defer runtime.KeepAlive(f)
	if err := f.alive(); err != nil {
		return nil, err
	}
	h := header(f.data)
	out := alignedBytes(f.shape.bodySize)
	for {
		seq := atomic.LoadUint64(&h.Sequence)
		copy(out, f.shape.bytes(f.data, seq%2))
		if atomic.LoadUint64(&h.Sequence) == seq {
			return f.of(bodyOf(out, f.shape.gpus)), nil
		}
	}
}

// View runs fn on the current body in place, again if it changed during the run: fn must only copy values out. It saves Read's copy.
func (f *File) View(fn func(*Body)) error {
	if err := f.alive(); err != nil {
		return err
	}
	f.Peek(fn)
	return nil
}

// Peek is View without first checking whether the file still has all its bytes: for a caller that has just called Replaced.
func (f *File) Peek(fn func(*Body)) {
	defer runtime.KeepAlive(f)
	h := header(f.data)
	for {
		seq := atomic.LoadUint64(&h.Sequence)
		fn(f.bodies[seq%2])
		if atomic.LoadUint64(&h.Sequence) == seq {
			return
		}
	}
}

// Update changes the body: everything that fn does or, when fn returns an error, nothing. Writers wait for each other, also across
// processes.
func (f *File) Update(fn func(*Body) error) error {
	return f.locked(func(h *Header) error {
		seq := atomic.LoadUint64(&h.Sequence)
		copy(f.shape.bytes(f.data, (seq+1)%2), f.shape.bytes(f.data, seq%2))
		if err := fn(f.of(f.shape.body(f.data, (seq+1)%2))); err != nil {
			return err
		}
		atomic.StoreUint64(&h.Sequence, seq+1)
		return nil
	})
}

// locked runs fn as the only writer.
func (f *File) locked(fn func(*Header) error) error {
	defer runtime.KeepAlive(f)
	f.write.Lock()
	defer f.write.Unlock()
	if err := f.alive(); err != nil {
		return err
	}
	for {
		err := unix.Flock(int(f.file.Fd()), unix.LOCK_EX)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock node state %s: %w", f.path, err)
		}
	}
	defer func() { _ = unix.Flock(int(f.file.Fd()), unix.LOCK_UN) }() // closing would unlock it too
	if !f.writable() {
		return fmt.Errorf("node state %s: %w", f.path, os.ErrPermission)
	}
	return fn(header(f.data))
}

func (f *File) writable() bool {
	flags, err := unix.FcntlInt(f.file.Fd(), unix.F_GETFL, 0)
	return err == nil && flags&unix.O_ACCMODE == unix.O_RDWR
}

// Administered reports whether this process may make an administrator's changes: root may, and so may the file's owner.
func (f *File) Administered() bool {
	var file unix.Stat_t
	self := os.Geteuid()
	return self == 0 || unix.Fstat(int(f.file.Fd()), &file) == nil && int(file.Uid) == self
}

// retire marks this file as replaced, for its clients.
func (f *File) retire() {
	if !f.writable() {
		return
	}
	h := header(f.data)
	atomic.StoreUint32(&h.Replaced, 1)
	atomic.AddUint32(&h.Wake, 1)
	wake(&h.Wake)
}

// Sequence counts the updates so far; 0 is also given for a file that is gone.
func (f *File) Sequence() uint64 {
	defer runtime.KeepAlive(f)
	if f.alive() != nil {
		return 0
	}
	return atomic.LoadUint64(&header(f.data).Sequence)
}
