package httpserver

import (
	"log"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

const (
	// linesAtOnce and linePause limit the lines that callers can put into the log: a failed TLS handshake, which does not need a
	// token, is one.
	linesAtOnce = 5
	linePause   = 30 * time.Second
	longestLine = 256
)

// errorLog is the log of an http.Server: the first lines, then one in 30 s with the number of those left out.
func errorLog(to klog.Logger) *log.Logger { return log.New(&lines{to: to, now: time.Now}, "", 0) }

type lines struct {
	to  klog.Logger
	now func() time.Time

	mu      sync.Mutex
	written int
	last    time.Time
	omitted int
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if l.written >= linesAtOnce && now.Sub(l.last) < linePause {
		l.omitted++
		return len(line), nil
	}
	l.written, l.last = l.written+1, now
	l.to.Info("A connection failed", "problem", strings.TrimSpace(string(line[:min(len(line), longestLine)])), "linesLeftOut", l.omitted)
	l.omitted = 0
	return len(line), nil
}
