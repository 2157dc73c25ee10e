package cudatest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build compiles a program, or a library, of this text.
func build(t *testing.T, text string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	source, out := filepath.Join(dir, "program.c"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "gcc", append([]string{"-o", out, source, "-ldl"}, flags...)...)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	return out
}

// under runs a program with the library, as the loader's list of a container has it, and returns its output.
func under(ctx context.Context, preload string, program string, arguments ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Env = []string{preload, "PATH=" + os.Getenv("PATH")}
	said, err := cmd.CombinedOutput()
	return string(said), err
}

// AddressSanitizer's runtime, as gcc links it, ends a program that has another library before it.
func TestProgramsWithAddressSanitizerStartWithTheLibrary(t *testing.T) {
	_, lib := node(t, "l40s-8")
	preload, _ := limited(t, lib, 10240)
	const text = `#include <stdlib.h>
#include <string.h>
int main(int c, char **v) { char *p = malloc(8); memset(p, 0, 8); if (c > 1) p[8 + atoi(v[1])] = 1; free(p); return 0; }
`
	program := build(t, text, "-g", "-fsanitize=address")
	if said, err := under(t.Context(), preload, program); err != nil {
		t.Errorf("it does not start: %v\n%s", err, said)
	}
	if said, err := under(t.Context(), preload, program, "0"); err == nil || !strings.Contains(said, "heap-buffer-overflow") {
		t.Errorf("it finds no fault: %v\n%s", err, said)
	}
	own := build(t, `const char *__asan_default_options(void) { return "exitcode=42:verify_asan_link_order=0"; }`+"\n"+text, "-g",
		"-fsanitize=address")
	if said, err := under(t.Context(), preload, own, "0"); err == nil || !strings.Contains(err.Error(), "42") {
		t.Errorf("its own options are not heeded: %v\n%s", err, said)
	}
}

// A child that does not call CUDA must not pay for the library: it has the page faults that it has without.
func TestForkDoesNotUseLibraryWithoutCUDA(t *testing.T) {
	_, lib := node(t, "l40s-8")
	preload, _ := limited(t, lib, 10240)
	program := build(t, `#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
	struct rusage r;
	for (int i = 0; i < 100; i++) {
		pid_t p = fork();
		if (!p)
			_exit(0);
		waitpid(p, 0, 0);
	}
	getrusage(RUSAGE_CHILDREN, &r);
	printf("%ld\n", r.ru_minflt / 100);
	return 0;
}
`)
	faults := func(env string) int {
		said, err := under(t.Context(), env, program)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, c := range strings.TrimSpace(said) {
			n = n*10 + int(c-'0')
		}
		return n
	}
	if with, without := faults(preload), faults("NONE=1"); with > without+3 {
		t.Errorf("%d page faults in a child, %d without the library", with, without)
	}
}
