// What of libibverbs is used, declared anew, so that the build needs no headers of it.
// Layouts are those of its ABI version IBVERBS_1.1. TestABI compares them with the
// headers where a machine has them.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct kv_device_attr { // struct ibv_device_attr
	char fw_ver[64];
	uint64_t node_guid; // big endian
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_ee_rd_atom;
	int max_res_rd_atom;
	int max_qp_init_rd_atom;
	int max_ee_init_rd_atom;
	int atomic_cap;
	int max_ee;
	int max_rdd;
	int max_mw;
	int max_raw_ipv6_qp;
	int max_raw_ethy_qp;
	int max_mcast_grp;
	int max_mcast_qp_attach;
	int max_total_mcast_qp_attach;
	int max_ah;
	int max_fmr;
	int max_map_per_fmr;
	int max_srq;
	int max_srq_wr;
	int max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

struct kv_port_attr { // struct ibv_port_attr; the library fills it up to phys_state
	int state;
	int max_mtu; // 1: 256 bytes, to 5: 4096
	int active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_sz;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer;
	uint8_t flags;
	uint16_t port_cap_flags2;
};

// What is the library's alone.
struct kv_context;
struct kv_device;
struct kv_pd;
struct kv_srq;

struct kv_comp_channel { // struct ibv_comp_channel
	struct kv_context *context;
	int fd;
	int refcnt;
};

struct kv_cq { // the head of struct ibv_cq
	struct kv_context *context;
	struct kv_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
};

struct kv_qp { // the head of struct ibv_qp
	struct kv_context *context;
	void *qp_context;
	struct kv_pd *pd;
	struct kv_cq *send_cq;
	struct kv_cq *recv_cq;
	struct kv_srq *srq;
	uint32_t handle;
	uint32_t qp_num;
	int state;
	int qp_type;
};

struct kv_mr { // struct ibv_mr
	struct kv_context *context;
	struct kv_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct kv_sge { // struct ibv_sge
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct kv_send_wr { // struct ibv_send_wr
	uint64_t wr_id;
	struct kv_send_wr *next;
	struct kv_sge *sg_list;
	int num_sge;
	int opcode;
	unsigned int send_flags;
	uint32_t imm_data; // big endian
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
		} atomic;
	} wr;
	uint32_t remote_srqn;
	union {
		struct {
			void *mw;
			uint32_t rkey;
			void *mr;
			uint64_t addr;
			uint64_t length;
			unsigned int access;
		} bind_mw;
		struct {
			void *hdr;
			uint16_t hdr_sz;
			uint16_t mss;
		} tso;
	};
};

struct kv_recv_wr { // struct ibv_recv_wr
	uint64_t wr_id;
	struct kv_recv_wr *next;
	struct kv_sge *sg_list;
	int num_sge;
};

struct kv_wc { // struct ibv_wc
	uint64_t wr_id;
	int status;
	int opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data; // big endian
	uint32_t qp_num;
	uint32_t src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

struct kv_context { // the head of struct ibv_context; names of what is not used are left out
	struct kv_device *device;
	void *ops_before_poll_cq[11];
	int (*poll_cq)(struct kv_cq *, int, struct kv_wc *);
	int (*req_notify_cq)(struct kv_cq *, int);
	void *ops_before_post_send[12];
	int (*post_send)(struct kv_qp *, struct kv_send_wr *, struct kv_send_wr **);
	int (*post_recv)(struct kv_qp *, struct kv_recv_wr *, struct kv_recv_wr **);
	void *ops_after_post_recv[5];
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
};

struct kv_async_event { // struct ibv_async_event
	union {
		struct kv_cq *cq;
		struct kv_qp *qp;
		int port_num;
	} element;
	int event_type;
};

struct kv_qp_cap { // struct ibv_qp_cap
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct kv_qp_init_attr { // struct ibv_qp_init_attr
	void *qp_context;
	struct kv_cq *send_cq;
	struct kv_cq *recv_cq;
	struct kv_srq *srq;
	struct kv_qp_cap cap;
	int qp_type;
	int sq_sig_all;
};

struct kv_ah_attr { // struct ibv_ah_attr, with its struct ibv_global_route in front
	uint8_t dgid[16] __attribute__((aligned(8)));
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
	uint16_t dlid __attribute__((aligned(8)));
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

struct kv_qp_attr { // struct ibv_qp_attr
	int qp_state;
	int cur_qp_state;
	int path_mtu;
	int path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct kv_qp_cap cap;
	struct kv_ah_attr ah_attr;
	struct kv_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

// Values of the library's enumerations.
enum {
	KV_QPS_RESET = 0,
	KV_QPS_INIT = 1,
	KV_QPS_RTR = 2,
	KV_QPS_RTS = 3,
	KV_QPS_ERR = 6,
	KV_QPT_RC = 2,
	KV_WR_RDMA_WRITE = 0,
	KV_WR_RDMA_WRITE_WITH_IMM = 1,
	KV_SEND_SIGNALED = 1 << 1,
	KV_WC_WITH_IMM = 1 << 1,
	KV_WC_RECV_RDMA_WITH_IMM = 129,
	KV_ACCESS_LOCAL_WRITE = 1,
	KV_ACCESS_REMOTE_WRITE = 1 << 1,
	KV_ACCESS_RELAXED_ORDERING = 1 << 20,
	KV_EVENT_CQ_ERR = 0,
	KV_EVENT_QP_FATAL = 1,
	KV_EVENT_QP_REQ_ERR = 2,
	KV_EVENT_QP_ACCESS_ERR = 3,
	KV_EVENT_DEVICE_FATAL = 8,
	KV_EVENT_PORT_ACTIVE = 9,
	KV_EVENT_PORT_ERR = 10,
	KV_EVENT_LID_CHANGE = 11,
	KV_EVENT_GID_CHANGE = 18,
	KV_QP_STATE = 1 << 0,
	KV_QP_ACCESS_FLAGS = 1 << 3,
	KV_QP_PKEY_INDEX = 1 << 4,
	KV_QP_PORT = 1 << 5,
	KV_QP_AV = 1 << 7,
	KV_QP_PATH_MTU = 1 << 8,
	KV_QP_TIMEOUT = 1 << 9,
	KV_QP_RETRY_CNT = 1 << 10,
	KV_QP_RNR_RETRY = 1 << 11,
	KV_QP_RQ_PSN = 1 << 12,
	KV_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	KV_QP_MIN_RNR_TIMER = 1 << 15,
	KV_QP_SQ_PSN = 1 << 16,
	KV_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	KV_QP_DEST_QPN = 1 << 20,
};
