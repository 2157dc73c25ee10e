package validation

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// bandwidthTest is the test of nvbandwidth that reads every GPU's memory from every other GPU, across nodes.
const bandwidthTest = "multinode_device_to_device_memcpy_read_ce"

// Bandwidths are the results of nvbandwidth, in GB/s (of 10^9 bytes).
type Bandwidths struct {
	Pairs int     // of GPUs that were measured
	Least float64 // of the slowest pair
	Sum   float64 // over all pairs
}

// readBandwidths reads the matrix that nvbandwidth prints. Without a whole matrix it reports the other output.
func readBandwidths(output string) (Bandwidths, error) {
	found := Bandwidths{Least: math.Inf(1)}
	header, inMatrix := false, false
	for line := range strings.Lines(output) {
		words := strings.Fields(line)
		switch {
		case strings.Contains(line, "bandwidth (GB/s)"):
			header, inMatrix = true, true
		case len(words) == 3 && words[0] == "SUM" && words[1] == bandwidthTest:
			sum, err := strconv.ParseFloat(strings.ReplaceAll(words[2], ",", ""), 64)
			if err != nil || found.Pairs == 0 {
				return Bandwidths{}, fmt.Errorf("nvbandwidth printed %q without a matrix that can be read", strings.TrimSpace(line))
			}
			found.Sum = sum
			return found, nil
		case header: // the columns' numbers
			header = false
		case inMatrix && len(words) > 2:
			for _, word := range words[1:] { // the first is the row's number
				if speed, err := strconv.ParseFloat(word, 64); err == nil {
					found.Pairs, found.Least = found.Pairs+1, min(found.Least, speed)
				}
			}
		}
	}
	return Bandwidths{}, fmt.Errorf("nvbandwidth printed no sum for %s; it ended with: %s", bandwidthTest, lastLines(output, 5))
}

// lastLines returns the last n lines, in one.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " / ")
}
