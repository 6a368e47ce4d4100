// The command line that resumes a stopped run.
#ifndef TRAINER_COMMAND_H
#define TRAINER_COMMAND_H

// Prints, on rank 0 and quoted for a shell, the command with its resume options replaced by -y 1. If the
// command line of the process that started this rank ends with it, as with mpirun, prints that one.
void print_command_to_go_on(int argc, char **argv);

#endif
