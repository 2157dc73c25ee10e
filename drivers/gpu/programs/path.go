package programs

import (
	"debug/elf"
	"errors"
	"io"
	"os"
	"strings"
)

// interpreter is the program that the kernel starts to run a file: the loader that an ELF file names, or the one after #!. It is
// empty for a statically linked program.
func interpreter(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	head := make([]byte, 256)        // as much as the kernel reads
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if script, ok := strings.CutPrefix(string(head[:n]), "#!"); ok {
		line, _, _ := strings.Cut(script, "\n")
		words := strings.Fields(line)
		if len(words) == 0 {
			return "", errors.New("its first line does not name an interpreter")
		}
		return words[0], nil
	}
	program, err := elf.NewFile(f)
	if err != nil {
		return "", err
	}
	for _, segment := range program.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		path, err := io.ReadAll(io.LimitReader(segment.Open(), 4096))
		return strings.TrimRight(string(path), "\x00"), err
	}
	return "", nil
}
