/* SPDX-License-Identifier: MIT */
/* The program `tutti`: finds the sub-command and passes the rest of the command line to it. */
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"bench", command_bench}, {"diagnose", command_diagnose}, {"dump", command_dump},
    {"info", command_info},   {"mpi", command_mpi},           {"nccl", command_nccl},
    {"run", command_run},     {"tune", command_tune},
};

static const char doc[] =
    "Collective operations between the ranks of one node.\v"
    "Commands:\n"
    "  bench     measure and check collectives between ranks of this machine, or of a launcher\n"
    "  diagnose  name the rank that made a job fail or hang, from dumps\n"
    "  dump      write what the communicators of a process have done as JSON\n"
    "  info      show the machine, the library's choices and a self-test\n"
    "  mpi       start a program of MPI whose collectives Tutti serves\n"
    "  nccl      start a program that calls NCCL with Tutti in its place\n"
    "  run       start a program as several ranks\n"
    "  tune      measure kernels on GPUs, and write a tuning file\n\n"
    "'tutti COMMAND --help' describes each.";

struct chosen {
    const struct command *command;
    int first; /* its index in argv */
};

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct chosen *chosen = state->input;
    switch (key) {
    case ARGP_KEY_ARG:
        for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
            if (strcmp(text, commands[i].name) == 0)
                chosen->command = &commands[i];
        if (!chosen->command)
            argp_error(state,
                       "'%s' is no command: give bench, diagnose, dump, info, nccl, run or tune",
                       text);
        chosen->first = state->next - 1;
        state->next = state->argc; /* the rest belongs to the command */
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state,
                   "a command is missing: give bench, diagnose, dump, info, nccl, run or tune");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    fprintf(stream, "tutti %s\n", tutti_version_string());
}

/* Makes the exit status a failure if output was lost, for example on a full disk. Also after
 * --help, which ends the program. */
static void check_output(int status, void *unused)
{
    (void)unused;
    if (!tool_output_arrived() && status == TOOL_OK)
        _exit(TOOL_FAILED);
}

/* If a standard stream is closed, the next pipe, socket or memory file would get its number, and
 * printed text would go there. Without /dev/null the number gets a descriptor that refuses reads
 * and writes. */
static bool open_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0 && open("/", O_PATH) < 0)
            return tool_fail_errno("cannot open /dev/null in place of closed descriptor %d", fd);
    return true;
}

/* A descriptor that another process made non-blocking refuses what the reader has not made room
 * for (EAGAIN). Then this waits for the reader, as write() does on a blocking descriptor. */
static ssize_t write_all(void *descriptor, const char *text, size_t size)
{
    struct pollfd room = {.fd = *(const int *)descriptor, .events = POLLOUT};
    size_t done = 0;
    while (done < size) {
        ssize_t part = write(room.fd, text + done, size - done);
        if (part > 0)
            done += (size_t)part;
        else if (part < 0 && errno == EAGAIN)
            poll(&room, 1, -1);
        else if (part == 0 || errno != EINTR)
            break;
    }
    return (ssize_t)done;
}

/* Without memory the streams of the C library stay. */
static void replace_streams(void)
{
    static int descriptors[] = {STDOUT_FILENO, STDERR_FILENO};
    const cookie_io_functions_t functions = {.write = write_all};
    FILE *out = fopencookie(&descriptors[0], "w", functions);
    FILE *err = fopencookie(&descriptors[1], "w", functions);
    if (out)
        setvbuf(stdout = out, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
    if (err)
        setvbuf(stderr = err, NULL, _IONBF, 0);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {.parser = parse_option,
                                     .args_doc = "COMMAND [OPTION...]",
                                     .doc = doc,
                                     .children = help_children};
    struct chosen chosen = {0};
    argp_program_version_hook = print_version;
    if (!open_standard_streams())
        return TOOL_FAILED;
    replace_streams();
    /* A parent that ignores SIGCHLD passes this on. The kernel would then reap the ranks, and no
     * command would learn that they have ended. */
    signal(SIGCHLD, SIG_DFL);
    on_exit(check_output, NULL);
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &chosen) || !chosen.command)
        return TOOL_USAGE;
    static char name[64]; /* check_output() uses it after main() has returned */
    snprintf(name, sizeof name, "tutti %s", chosen.command->name);
    argv[chosen.first] = name;
    program_invocation_name = name;
    program_invocation_short_name = name;
    return chosen.command->run(argc - chosen.first, argv + chosen.first);
}
