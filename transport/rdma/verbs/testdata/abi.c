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
