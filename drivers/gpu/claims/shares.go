package claims

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/gpu/limiter/account"
)

// shares exports the limits and the use of shared GPUs by the containers of claims, for the shares that the library limits.
// Containers write the files with these counts, so they are not trusted: see package region.
type shares struct {
	limits Limits
	claim  func(types.UID) (types.NamespacedName, bool)

	held, limit, used, time, unreadable *prometheus.Desc
}

var _ prometheus.Collector = shares{}

func newShares(limits Limits, claim func(types.UID) (types.NamespacedName, bool)) shares {
	// claim_uid keeps apart two claims of one name, of which the first one's pod was deleted by force and still runs.
	share := []string{"claim_namespace", "claim", "claim_uid", "share", "uuid"}
	return shares{limits, claim,
		prometheus.NewDesc("gpufabric_gpu_limited_shares",
			"Shares of GPUs, of claims, whose containers are held to the share's limits, by what does so: library.", []string{"by"}, nil),
		prometheus.NewDesc("gpufabric_gpu_share_memory_limit_bytes",
			"Memory of a claim's share of a GPU, in bytes. share counts the claim's shares from 0.", share, nil),
		prometheus.NewDesc("gpufabric_gpu_share_memory_used_bytes",
			"Memory that all containers of a claim's share use of it, in bytes. Missing where each container counts by itself.", share, nil),
		prometheus.NewDesc("gpufabric_gpu_share_seconds_total",
			"Time of a GPU that the containers of a claim's share were charged, in seconds, as their library counts it. Missing without a limit of "+
				"cores.", share, nil),
		prometheus.NewDesc("gpufabric_gpu_share_regions_unreadable",
			"Shares of claims whose use of memory could not be read at this scrape.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (s shares) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{s.held, s.limit, s.used, s.time, s.unreadable} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (s shares) Collect(to chan<- prometheus.Metric) {
	names, err := s.limits.names()
	if err != nil {
		to <- prometheus.NewInvalidMetric(s.held, err)
		return
	}
	to <- prometheus.MustNewConstMetric(s.held, prometheus.GaugeValue, float64(len(names)), byLibrary)
	unreadable := 0
	for _, name := range names {
		if !s.share(to, name) {
			unreadable++
		}
	}
	to <- prometheus.MustNewConstMetric(s.unreadable, prometheus.GaugeValue, float64(unreadable))
}

// share exports one share; false: its use could not be read.
func (s shares) share(to chan<- prometheus.Metric, name string) bool {
	uid, index, _ := strings.Cut(name, "_")
	claim, known := s.claim(types.UID(uid))
	text, err := os.ReadFile(filepath.Join(s.limits.Files, name))
	if errors.Is(err, fs.ErrNotExist) || !known {
		return true // the claim has just ended
	}
	limits, err := limiter.Parse(text)
	if err != nil || len(limits) != 1 {
		return false
	}
	labels := []string{claim.Namespace, claim.Name, uid, index, limits[0].UUID}
	if limits[0].Bytes > 0 { // else it has cores alone
		to <- prometheus.MustNewConstMetric(s.limit, prometheus.GaugeValue, float64(limits[0].Bytes), labels...)
	}
	if s.limits.Seats != nil && limits[0].Cores > 0 {
		charged := s.limits.Seats.Charged(name, limits[0].UUID)
		to <- prometheus.MustNewConstMetric(s.time, prometheus.CounterValue, charged.Seconds(), labels...)
	}
	directory := filepath.Join(s.limits.Accounts, name)
	if _, err := os.Stat(directory); err != nil {
		return errors.Is(err, fs.ErrNotExist) // each of its containers counts by itself
	}
	used, read := usedOf(directory, limits[0].UUID)
	if read {
		to <- prometheus.MustNewConstMetric(s.used, prometheus.GaugeValue, float64(used), labels...)
	}
	return read
}

// usedOf reads how much memory of a GPU the containers with this account use, in bytes; false: they are unreadable. Before
// the first of them calls CUDA they use nothing.
func usedOf(directory, uuid string) (used uint64, read bool) {
	counted, err := account.Read(filepath.Join(directory, account.Name))
	if err != nil || !counted.Opened {
		return 0, err == nil
	}
	return counted.UsedOf(uuid)
}
