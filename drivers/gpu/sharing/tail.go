package sharing

// tailBytes is how much of a program's output is kept: a daemon in the foreground prints something about every client for as long
// as it runs.
const tailBytes = 4 << 10

// tail keeps the end of a program's output.
type tail struct{ kept []byte }

// Write accepts everything, and keeps the last tailBytes.
func (t *tail) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p[max(0, len(p)-tailBytes):]...)
	if excess := len(t.kept) - tailBytes; excess > 0 {
		t.kept = append(t.kept[:0], t.kept[excess:]...)
	}
	return len(p), nil
}

func (t *tail) String() string { return string(t.kept) }
