// Package gangs has the tests of jobs that Kueue places inside one NVLink clique: the real Kueue, JobSet and LeaderWorkerSet,
// built from their modules, on a simulated cluster of two racks. `make test-gangs` runs it; the first build of Kueue takes
// minutes.
package gangs
