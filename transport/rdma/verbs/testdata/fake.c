// A library with the functions of libibverbs that are used, for tests: two devices, of
// which the second may not be opened, and the first has limits like those of a card.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "../abi.h"

struct kv_device { const char *name; };
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

// The rest is there, and makes nothing.
struct kv_pd *ibv_alloc_pd(struct kv_context *c)
{
	errno = ENOMEM;
	return 0;
}
int ibv_dealloc_pd(struct kv_pd *p) { return 0; }
struct kv_mr *ibv_reg_mr(struct kv_pd *p, void *start, size_t n, int access) { return 0; }
int ibv_dereg_mr(struct kv_mr *m) { return 0; }
struct kv_cq *ibv_create_cq(struct kv_context *c, int n, void *x, struct kv_comp_channel *ch, int v) { return 0; }
int ibv_destroy_cq(struct kv_cq *c) { return 0; }
struct kv_qp *ibv_create_qp(struct kv_pd *p, struct kv_qp_init_attr *a) { return 0; }
int ibv_modify_qp(struct kv_qp *q, struct kv_qp_attr *a, int mask) { return EINVAL; }
int ibv_destroy_qp(struct kv_qp *q) { return 0; }
struct kv_comp_channel *ibv_create_comp_channel(struct kv_context *c) { return 0; }
int ibv_destroy_comp_channel(struct kv_comp_channel *c) { return 0; }
int ibv_get_cq_event(struct kv_comp_channel *c, struct kv_cq **q, void **own) { return -1; }
void ibv_ack_cq_events(struct kv_cq *q, unsigned int n) {}
int ibv_get_async_event(struct kv_context *c, struct kv_async_event *e) { return -1; }
void ibv_ack_async_event(struct kv_async_event *e) {}
