/*
 * A program that is linked with a C library and does what another does that is linked with none. The fakes' programs are Go's and static,
 * so they would run whatever C library the node has; NVIDIA's are not. Built without start files, it asks the C library for symbols that
 * every version has, and its loader for none: a loader and a C library of two versions refuse each other (GLIBC_PRIVATE) before the first
 * line of this runs.
 *
 * The other program follows in the same file, after this one and before its length in 8 bytes. The loader may have been called by name
 * ("ld.so program"), so the file is found by the program's own name and not by /proc/self/exe; where the name is no path, by the one that
 * was executed.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <unistd.h>

static void refuse(const char *why, size_t length)
{
	write(2, why, length);
	_exit(126);
}

#define REFUSE(why) refuse(why "\n", sizeof why)

__attribute__((used)) static void start(long *stack)
{
	long argc = stack[0];
	char **argv = (char **)(stack + 1), **env = argv + argc + 1;
	uint64_t length;
	int file = open(argv[0], O_RDONLY);
	if (file < 0) {
		char **end = env;
		while (*end)
			end++;
		for (Elf64_auxv_t *word = (Elf64_auxv_t *)(end + 1); word->a_type != AT_NULL; word++)
			if (word->a_type == AT_EXECFN)
				file = open((const char *)word->a_un.a_val, O_RDONLY);
	}
	if (file < 0)
		REFUSE("launcher: the program's own file cannot be read");
	off_t end = lseek(file, -(off_t)sizeof length, SEEK_END);
	if (end < 0 || read(file, &length, sizeof length) != sizeof length || (off_t)length > end)
		REFUSE("launcher: no program follows");
	off_t from = end - (off_t)length;
	int copy = memfd_create("program", MFD_CLOEXEC);
	if (copy < 0)
		REFUSE("launcher: no memory for the program");
	while (from < end)
		if (sendfile(copy, file, &from, (size_t)(end - from)) <= 0)
			REFUSE("launcher: the program cannot be copied");
	close(file);
	fexecve(copy, argv, env);
	REFUSE("launcher: the program cannot be started");
}

/* The stack pointer is at the arguments; a call wants it aligned. */
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall start\n\thlt\n");
