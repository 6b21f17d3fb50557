// Compiled by TestABI, where the headers of libibverbs are installed: each layout that
// abi.h declares is the library's.
#include <infiniband/verbs.h>
#include <stddef.h>
#include "../abi.h"

#define SIZE(a, b) _Static_assert(sizeof(struct a) == sizeof(struct b), "size of " #a)
#define FIELD(a, b, f) \
	_Static_assert(offsetof(struct a, f) == offsetof(struct b, f), "offset of " #a "." #f); \
	_Static_assert(sizeof(((struct a *)0)->f) == sizeof(((struct b *)0)->f), "size of " #a "." #f)

#define DEVICE(f) FIELD(kv_device_attr, ibv_device_attr, f)
SIZE(kv_device_attr, ibv_device_attr);
DEVICE(fw_ver);
DEVICE(node_guid);
DEVICE(sys_image_guid);
DEVICE(max_mr_size);
DEVICE(page_size_cap);
DEVICE(vendor_id);
DEVICE(vendor_part_id);
DEVICE(hw_ver);
DEVICE(max_qp);
DEVICE(max_qp_wr);
DEVICE(device_cap_flags);
DEVICE(max_sge);
DEVICE(max_sge_rd);
DEVICE(max_cq);
DEVICE(max_cqe);
DEVICE(max_mr);
DEVICE(max_pd);
DEVICE(max_qp_rd_atom);
DEVICE(max_ee_rd_atom);
DEVICE(max_res_rd_atom);
DEVICE(max_qp_init_rd_atom);
DEVICE(max_ee_init_rd_atom);
DEVICE(atomic_cap);
DEVICE(max_ee);
DEVICE(max_rdd);
DEVICE(max_mw);
DEVICE(max_raw_ipv6_qp);
DEVICE(max_raw_ethy_qp);
DEVICE(max_mcast_grp);
DEVICE(max_mcast_qp_attach);
DEVICE(max_total_mcast_qp_attach);
DEVICE(max_ah);
DEVICE(max_fmr);
DEVICE(max_map_per_fmr);
DEVICE(max_srq);
DEVICE(max_srq_wr);
DEVICE(max_srq_sge);
DEVICE(max_pkeys);
DEVICE(local_ca_ack_delay);
DEVICE(phys_port_cnt);

#define PORT(f) FIELD(kv_port_attr, ibv_port_attr, f)
SIZE(kv_port_attr, ibv_port_attr);
PORT(state);
PORT(max_mtu);
PORT(active_mtu);
PORT(gid_tbl_len);
PORT(port_cap_flags);
PORT(max_msg_sz);
PORT(bad_pkey_cntr);
PORT(qkey_viol_cntr);
PORT(pkey_tbl_len);
PORT(lid);
PORT(sm_lid);
PORT(lmc);
PORT(max_vl_num);
PORT(sm_sl);
PORT(subnet_timeout);
PORT(init_type_reply);
PORT(active_width);
PORT(active_speed);
PORT(phys_state);
PORT(link_layer);
PORT(flags);
PORT(port_cap_flags2);

#define HEAD(f) FIELD(kv_cq, ibv_cq, f)
HEAD(context);
HEAD(channel);
HEAD(cq_context);
HEAD(handle);
HEAD(cqe);
#undef HEAD
#define HEAD(f) FIELD(kv_qp, ibv_qp, f)
HEAD(context);
HEAD(qp_context);
HEAD(pd);
HEAD(send_cq);
HEAD(recv_cq);
HEAD(srq);
HEAD(handle);
HEAD(qp_num);
HEAD(state);
HEAD(qp_type);

#define OP(f) \
	_Static_assert(offsetof(struct kv_context, f) == offsetof(struct ibv_context, ops.f), "offset of " #f)
OP(poll_cq);
OP(req_notify_cq);
OP(post_send);
OP(post_recv);
FIELD(kv_context, ibv_context, device);
FIELD(kv_context, ibv_context, cmd_fd);
FIELD(kv_context, ibv_context, async_fd);
FIELD(kv_context, ibv_context, num_comp_vectors);

SIZE(kv_mr, ibv_mr);
FIELD(kv_mr, ibv_mr, addr);
FIELD(kv_mr, ibv_mr, length);
FIELD(kv_mr, ibv_mr, handle);
FIELD(kv_mr, ibv_mr, lkey);
FIELD(kv_mr, ibv_mr, rkey);

SIZE(kv_sge, ibv_sge);
FIELD(kv_sge, ibv_sge, addr);
FIELD(kv_sge, ibv_sge, length);
FIELD(kv_sge, ibv_sge, lkey);

SIZE(kv_send_wr, ibv_send_wr);
FIELD(kv_send_wr, ibv_send_wr, wr_id);
FIELD(kv_send_wr, ibv_send_wr, next);
FIELD(kv_send_wr, ibv_send_wr, sg_list);
FIELD(kv_send_wr, ibv_send_wr, num_sge);
FIELD(kv_send_wr, ibv_send_wr, opcode);
FIELD(kv_send_wr, ibv_send_wr, send_flags);
FIELD(kv_send_wr, ibv_send_wr, imm_data);
FIELD(kv_send_wr, ibv_send_wr, wr.rdma.remote_addr);
FIELD(kv_send_wr, ibv_send_wr, wr.rdma.rkey);

SIZE(kv_recv_wr, ibv_recv_wr);
FIELD(kv_recv_wr, ibv_recv_wr, wr_id);
FIELD(kv_recv_wr, ibv_recv_wr, next);
FIELD(kv_recv_wr, ibv_recv_wr, sg_list);
FIELD(kv_recv_wr, ibv_recv_wr, num_sge);

SIZE(kv_wc, ibv_wc);
FIELD(kv_wc, ibv_wc, wr_id);
FIELD(kv_wc, ibv_wc, status);
FIELD(kv_wc, ibv_wc, opcode);
FIELD(kv_wc, ibv_wc, vendor_err);
FIELD(kv_wc, ibv_wc, byte_len);
FIELD(kv_wc, ibv_wc, imm_data);
FIELD(kv_wc, ibv_wc, qp_num);
FIELD(kv_wc, ibv_wc, wc_flags);

SIZE(kv_qp_cap, ibv_qp_cap);
SIZE(kv_qp_init_attr, ibv_qp_init_attr);
FIELD(kv_qp_init_attr, ibv_qp_init_attr, send_cq);
FIELD(kv_qp_init_attr, ibv_qp_init_attr, recv_cq);
FIELD(kv_qp_init_attr, ibv_qp_init_attr, cap.max_send_wr);
FIELD(kv_qp_init_attr, ibv_qp_init_attr, cap.max_recv_wr);
FIELD(kv_qp_init_attr, ibv_qp_init_attr, cap.max_send_sge);
FIELD(kv_qp_init_attr, ibv_qp_init_attr, cap.max_recv_sge);
FIELD(kv_qp_init_attr, ibv_qp_init_attr, cap.max_inline_data);
FIELD(kv_qp_init_attr, ibv_qp_init_attr, qp_type);
FIELD(kv_qp_init_attr, ibv_qp_init_attr, sq_sig_all);

SIZE(kv_comp_channel, ibv_comp_channel);
FIELD(kv_comp_channel, ibv_comp_channel, fd);

SIZE(kv_async_event, ibv_async_event);
FIELD(kv_async_event, ibv_async_event, element.cq);
FIELD(kv_async_event, ibv_async_event, element.qp);
FIELD(kv_async_event, ibv_async_event, element.port_num);
FIELD(kv_async_event, ibv_async_event, event_type);

SIZE(kv_ah_attr, ibv_ah_attr);
_Static_assert(offsetof(struct kv_ah_attr, dgid) == offsetof(struct ibv_ah_attr, grh.dgid), "offset of dgid");
_Static_assert(offsetof(struct kv_ah_attr, flow_label) == offsetof(struct ibv_ah_attr, grh.flow_label), "offset of flow_label");
_Static_assert(offsetof(struct kv_ah_attr, sgid_index) == offsetof(struct ibv_ah_attr, grh.sgid_index), "offset of sgid_index");
_Static_assert(offsetof(struct kv_ah_attr, hop_limit) == offsetof(struct ibv_ah_attr, grh.hop_limit), "offset of hop_limit");
_Static_assert(offsetof(struct kv_ah_attr, traffic_class) == offsetof(struct ibv_ah_attr, grh.traffic_class), "offset of traffic_class");
FIELD(kv_ah_attr, ibv_ah_attr, dlid);
FIELD(kv_ah_attr, ibv_ah_attr, sl);
FIELD(kv_ah_attr, ibv_ah_attr, is_global);
FIELD(kv_ah_attr, ibv_ah_attr, port_num);

#define QP(f) FIELD(kv_qp_attr, ibv_qp_attr, f)
SIZE(kv_qp_attr, ibv_qp_attr);
QP(qp_state);
QP(path_mtu);
QP(rq_psn);
QP(sq_psn);
QP(dest_qp_num);
QP(qp_access_flags);
QP(ah_attr);
QP(pkey_index);
QP(max_rd_atomic);
QP(max_dest_rd_atomic);
QP(min_rnr_timer);
QP(port_num);
QP(timeout);
QP(retry_cnt);
QP(rnr_retry);

#define VALUE(name) _Static_assert((int)KV_##name == (int)IBV_##name, #name)
VALUE(QPS_RESET);
VALUE(QPS_INIT);
VALUE(QPS_RTR);
VALUE(QPS_RTS);
VALUE(QPS_ERR);
VALUE(QPT_RC);
VALUE(WR_RDMA_WRITE);
VALUE(WR_RDMA_WRITE_WITH_IMM);
VALUE(SEND_SIGNALED);
VALUE(WC_WITH_IMM);
VALUE(WC_RECV_RDMA_WITH_IMM);
VALUE(ACCESS_LOCAL_WRITE);
VALUE(ACCESS_REMOTE_WRITE);
VALUE(ACCESS_RELAXED_ORDERING);
VALUE(EVENT_CQ_ERR);
VALUE(EVENT_QP_FATAL);
VALUE(EVENT_QP_REQ_ERR);
VALUE(EVENT_QP_ACCESS_ERR);
VALUE(EVENT_DEVICE_FATAL);
VALUE(EVENT_PORT_ACTIVE);
VALUE(EVENT_PORT_ERR);
VALUE(EVENT_LID_CHANGE);
VALUE(EVENT_GID_CHANGE);
VALUE(QP_STATE);
VALUE(QP_ACCESS_FLAGS);
VALUE(QP_PKEY_INDEX);
VALUE(QP_PORT);
VALUE(QP_AV);
VALUE(QP_PATH_MTU);
VALUE(QP_TIMEOUT);
VALUE(QP_RETRY_CNT);
VALUE(QP_RNR_RETRY);
VALUE(QP_RQ_PSN);
VALUE(QP_MAX_QP_RD_ATOMIC);
VALUE(QP_MIN_RNR_TIMER);
VALUE(QP_SQ_PSN);
VALUE(QP_MAX_DEST_RD_ATOMIC);
VALUE(QP_DEST_QPN);
