//go:build cgo && linux

#define _GNU_SOURCE
#include "shim.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FUNCTIONS(X) \
	X(struct kv_device **, ibv_get_device_list, (int *)) \
	X(void, ibv_free_device_list, (struct kv_device **)) \
	X(const char *, ibv_get_device_name, (struct kv_device *)) \
	X(struct kv_context *, ibv_open_device, (struct kv_device *)) \
	X(int, ibv_close_device, (struct kv_context *)) \
	X(int, ibv_query_device, (struct kv_context *, struct kv_device_attr *)) \
	X(int, ibv_query_port, (struct kv_context *, uint8_t, struct kv_port_attr *)) \
	X(struct kv_pd *, ibv_alloc_pd, (struct kv_context *)) \
	X(int, ibv_dealloc_pd, (struct kv_pd *)) \
	X(struct kv_mr *, ibv_reg_mr, (struct kv_pd *, void *, size_t, int)) \
	X(int, ibv_dereg_mr, (struct kv_mr *)) \
	X(struct kv_cq *, ibv_create_cq, (struct kv_context *, int, void *, struct kv_comp_channel *, int)) \
	X(int, ibv_destroy_cq, (struct kv_cq *)) \
	X(struct kv_qp *, ibv_create_qp, (struct kv_pd *, struct kv_qp_init_attr *)) \
	X(int, ibv_modify_qp, (struct kv_qp *, struct kv_qp_attr *, int)) \
	X(int, ibv_destroy_qp, (struct kv_qp *)) \
	X(struct kv_comp_channel *, ibv_create_comp_channel, (struct kv_context *)) \
	X(int, ibv_destroy_comp_channel, (struct kv_comp_channel *)) \
	X(int, ibv_get_cq_event, (struct kv_comp_channel *, struct kv_cq **, void **)) \
	X(void, ibv_ack_cq_events, (struct kv_cq *, unsigned int)) \
	X(int, ibv_get_async_event, (struct kv_context *, struct kv_async_event *)) \
	X(void, ibv_ack_async_event, (struct kv_async_event *))

// Functions that older libraries do not have.
#define OPTIONAL(X) \
	X(struct kv_mr *, ibv_reg_mr_iova2, (struct kv_pd *, void *, size_t, uint64_t, unsigned int)) \
	X(struct kv_mr *, ibv_reg_dmabuf_mr, (struct kv_pd *, uint64_t, size_t, uint64_t, int, int))

static struct library {
#define MEMBER(result, name, arguments) result(*name) arguments;
	FUNCTIONS(MEMBER)
	OPTIONAL(MEMBER)
} lib;

// find is a function of the library. Version 1.0 of some has other arguments: 1.1 is
// asked for first. The C library of Alpine knows no versions, and finds the newest.
static void *find(void *handle, const char *name)
{
	void *found = 0;
#ifdef __GLIBC__
	found = dlvsym(handle, name, "IBVERBS_1.1");
#endif
	return found ? found : dlsym(handle, name);
}

int kv_load(const char *path, char *text, int n)
{
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		snprintf(text, n, "%s", dlerror());
		return -1;
	}
	struct library found;
#define FIND(result, name, arguments) \
	found.name = (result(*) arguments)find(handle, #name); \
	if (!found.name) { \
		snprintf(text, n, "%s has no %s", path, #name); \
		dlclose(handle); \
		return -1; \
	}
	FUNCTIONS(FIND)
#define TRY(result, name, arguments) found.name = (result(*) arguments)dlsym(handle, #name);
	OPTIONAL(TRY)
	lib = found;
	return 0;
}

int kv_open(const char *name, struct kv_context **context, const char **what)
{
	*context = 0;
	*what = "ibv_get_device_list";
	int n = 0, error = ENODEV;
	errno = 0;
	struct kv_device **list = lib.ibv_get_device_list(&n);
	if (!list)
		return errno ? errno : ENODEV;
	for (int i = 0; i < n; i++) {
		if (strcmp(name, lib.ibv_get_device_name(list[i])) == 0) {
			*what = "ibv_open_device";
			errno = 0;
			*context = lib.ibv_open_device(list[i]);
			error = *context ? 0 : errno ? errno : EIO;
			break;
		}
	}
	lib.ibv_free_device_list(list);
	return error;
}

int kv_close(struct kv_context *context) { return lib.ibv_close_device(context); }

int kv_query(struct kv_context *context, uint8_t port, struct kv_device_attr *device, struct kv_port_attr *attr, const char **what)
{
	*what = "ibv_query_device";
	int error = lib.ibv_query_device(context, device);
	if (error == 0) {
		*what = "ibv_query_port";
		memset(attr, 0, sizeof *attr);
		error = lib.ibv_query_port(context, port, attr);
	}
	return error;
}

// made is 0, or why a call that makes something made nothing.
static int made(const void *thing) { return thing ? 0 : errno ? errno : EIO; }

int kv_alloc_pd(struct kv_context *context, struct kv_pd **pd)
{
	errno = 0;
	return made(*pd = lib.ibv_alloc_pd(context));
}

int kv_dealloc_pd(struct kv_pd *pd) { return lib.ibv_dealloc_pd(pd); }

int kv_reg_mr(struct kv_pd *pd, uint64_t start, size_t n, int access, struct kv_mr **mr)
{
	errno = 0;
	// This one drops what is asked for and the kernel does not know; the other refuses.
	if (access & KV_ACCESS_RELAXED_ORDERING && lib.ibv_reg_mr_iova2)
		return made(*mr = lib.ibv_reg_mr_iova2(pd, (void *)start, n, start, access));
	return made(*mr = lib.ibv_reg_mr(pd, (void *)start, n, access & ~KV_ACCESS_RELAXED_ORDERING));
}

int kv_reg_dmabuf_mr(struct kv_pd *pd, uint64_t offset, size_t n, uint64_t addr, int fd, int access, struct kv_mr **mr)
{
	*mr = 0;
	if (!lib.ibv_reg_dmabuf_mr)
		return ENOSYS;
	errno = 0;
	return made(*mr = lib.ibv_reg_dmabuf_mr(pd, offset, n, addr, fd, access));
}

int kv_dereg_mr(struct kv_mr *mr) { return lib.ibv_dereg_mr(mr); }

int kv_create_channel(struct kv_context *context, struct kv_comp_channel **channel)
{
	errno = 0;
	return made(*channel = lib.ibv_create_comp_channel(context));
}

int kv_destroy_channel(struct kv_comp_channel *channel) { return lib.ibv_destroy_comp_channel(channel); }

int kv_take_cq_event(struct kv_comp_channel *channel)
{
	struct kv_cq *cq;
	void *own;
	errno = 0;
	if (lib.ibv_get_cq_event(channel, &cq, &own) != 0)
		return errno ? errno : EIO;
	lib.ibv_ack_cq_events(cq, 1);
	return 0;
}

int kv_take_async_event(struct kv_context *context, int *type, uint32_t *number, void **cq)
{
	struct kv_async_event event;
	errno = 0;
	if (lib.ibv_get_async_event(context, &event) != 0)
		return errno ? errno : EIO;
	*type = event.event_type;
	*number = 0;
	*cq = 0;
	switch (event.event_type) {
	case KV_EVENT_CQ_ERR:
		*cq = event.element.cq;
		break;
	case KV_EVENT_QP_FATAL:
	case KV_EVENT_QP_REQ_ERR:
	case KV_EVENT_QP_ACCESS_ERR:
		*number = event.element.qp->qp_num; // it is not destroyed before the event is acknowledged
		break;
	case KV_EVENT_PORT_ACTIVE:
	case KV_EVENT_PORT_ERR:
	case KV_EVENT_LID_CHANGE:
	case KV_EVENT_GID_CHANGE:
		*number = event.element.port_num;
		break;
	}
	lib.ibv_ack_async_event(&event);
	return 0;
}

int kv_create_cq(struct kv_context *context, int entries, struct kv_comp_channel *channel, struct kv_cq **cq)
{
	errno = 0;
	return made(*cq = lib.ibv_create_cq(context, entries, 0, channel, 0));
}

int kv_destroy_cq(struct kv_cq *cq) { return lib.ibv_destroy_cq(cq); }

int kv_create_qp(struct kv_pd *pd, struct kv_cq *cq, struct kv_qp_cap *cap, struct kv_qp **qp)
{
	struct kv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .cap = *cap, .qp_type = KV_QPT_RC};
	errno = 0;
	*qp = lib.ibv_create_qp(pd, &a);
	*cap = a.cap; // what it really has
	return made(*qp);
}

int kv_modify_qp(struct kv_qp *qp, struct kv_qp_attr *attr, int mask) { return lib.ibv_modify_qp(qp, attr, mask); }

int kv_destroy_qp(struct kv_qp *qp) { return lib.ibv_destroy_qp(qp); }

// Those that are fast are not functions of the library: it keeps the driver's in
// the context.
int kv_post_send(struct kv_qp *qp, struct kv_send_wr *wr, struct kv_send_wr **bad) { return qp->context->post_send(qp, wr, bad); }

int kv_post_recv(struct kv_qp *qp, struct kv_recv_wr *wr, struct kv_recv_wr **bad) { return qp->context->post_recv(qp, wr, bad); }

int kv_arm_cq(struct kv_cq *cq) { return cq->context->req_notify_cq(cq, 0); }

int kv_poll_cq(struct kv_cq *cq, int n, struct kv_wc *wc) { return cq->context->poll_cq(cq, n, wc); }
