/* The least that a loop can cost: starts a program N times and waits for it. With N = 0 it costs what any program does. */
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv) {
    for (int left = argc > 2 ? atoi(argv[1]) : 0; left > 0; left--) {
        pid_t child;
        if (posix_spawn(&child, argv[2], NULL, NULL, argv + 2, environ) || waitpid(child, NULL, 0) < 0) return 1;
    }
    return 0;
}
