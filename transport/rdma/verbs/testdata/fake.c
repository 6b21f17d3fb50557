// A library with the functions of libibverbs that are used, for tests: two devices, of
// which the second may not be opened, and the first has limits like those of a card.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "../abi.h"

struct kv_device { const char *name; };
struct kv_context { struct kv_device *device; };

static struct kv_device devices[] = {{"ionic_0"}, {"locked_0"}};

#ifndef WITHOUT_LIST
struct kv_device **ibv_get_device_list(int *n)
{
	struct kv_device **list = calloc(3, sizeof *list);
	list[0] = &devices[0], list[1] = &devices[1];
	*n = 2;
	return list;
}
#endif
void ibv_free_device_list(struct kv_device **list) { free(list); }
const char *ibv_get_device_name(struct kv_device *d) { return d->name; }
struct kv_context *ibv_open_device(struct kv_device *d)
{
	if (d == &devices[1]) {
		errno = EACCES;
		return 0;
	}
	struct kv_context *c = malloc(sizeof *c);
	c->device = d;
	return c;
}
int ibv_close_device(struct kv_context *c)
{
	free(c);
	return 0;
}
int ibv_query_device(struct kv_context *c, struct kv_device_attr *a)
{
	memset(a, 0, sizeof *a);
	memset(a->fw_ver, 'x', sizeof a->fw_ver); // without a zero at its end
	a->max_mr_size = 1ull << 40;
	a->max_qp = 1000, a->max_qp_wr = 32767, a->max_sge = 2, a->max_cqe = 65535, a->max_mr = 4096;
	a->device_cap_flags = 1u << 31;
	return 0;
}
int ibv_query_port(struct kv_context *c, uint8_t port, struct kv_port_attr *a)
{
	if (port != 1)
		return EINVAL;
	// As the real one does, it knows nothing of the fields behind phys_state.
	a->state = 4, a->max_mtu = 5, a->active_mtu = 3, a->gid_tbl_len = 24, a->max_msg_sz = 1u << 30;
	return 0;
}
