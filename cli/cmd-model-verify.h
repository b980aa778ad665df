/* octet model verify: called by octet model, which has the other sub-commands. */
#ifndef OCT_CMD_MODEL_VERIFY_H
#define OCT_CMD_MODEL_VERIFY_H

/* argv[0] is "verify". Returns one of OCT_EXIT_*. */
int oct_cmd_model_verify(int argc, char **argv);

#endif
