#pragma once
#include "abi.h"

// kv_load loads the library, once for the process. 0, or -1 with the reason in text,
// which has n bytes.
int kv_load(const char *path, char *text, int n);

// All others return 0 or an errno, but for kv_poll_cq. With what they say which call of
// the library it is of.
int kv_open(const char *name, struct kv_context **context, const char **what);
int kv_close(struct kv_context *context);
int kv_query(struct kv_context *context, uint8_t port, struct kv_device_attr *device, struct kv_port_attr *attr, const char **what);
int kv_alloc_pd(struct kv_context *context, struct kv_pd **pd);
int kv_dealloc_pd(struct kv_pd *pd);
int kv_reg_mr(struct kv_pd *pd, uint64_t start, size_t n, int access, struct kv_mr **mr);
int kv_reg_dmabuf_mr(struct kv_pd *pd, uint64_t offset, size_t n, uint64_t addr, int fd, int access, struct kv_mr **mr); // ENOSYS: the library is too old
int kv_dereg_mr(struct kv_mr *mr);
int kv_create_channel(struct kv_context *context, struct kv_comp_channel **channel);
int kv_destroy_channel(struct kv_comp_channel *channel);
int kv_create_cq(struct kv_context *context, int entries, struct kv_comp_channel *channel, struct kv_cq **cq);

// kv_take_cq_event takes an event of a channel, and acknowledges it; EAGAIN: there is none.
int kv_take_cq_event(struct kv_comp_channel *channel);

// kv_take_async_event does so with an event of a device. number is the queue pair's or
// the port's, cq the address of a completion queue.
int kv_take_async_event(struct kv_context *context, int *type, uint32_t *number, void **cq);
int kv_destroy_cq(struct kv_cq *cq);

// kv_create_qp makes a queue pair of reliable connections, for which only what asks for
// it completes. cap is what is wanted, and then what there is.
int kv_create_qp(struct kv_pd *pd, struct kv_cq *cq, struct kv_qp_cap *cap, struct kv_qp **qp);
int kv_modify_qp(struct kv_qp *qp, struct kv_qp_attr *attr, int mask);
int kv_destroy_qp(struct kv_qp *qp);
int kv_post_send(struct kv_qp *qp, struct kv_send_wr *wr, struct kv_send_wr **bad);
int kv_post_recv(struct kv_qp *qp, struct kv_recv_wr *wr, struct kv_recv_wr **bad);

int kv_arm_cq(struct kv_cq *cq);

// kv_poll_cq takes at most n completions. It returns how many, or a negative number.
int kv_poll_cq(struct kv_cq *cq, int n, struct kv_wc *wc);
