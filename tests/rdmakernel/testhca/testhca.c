// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
/*
 * Loaded into a kernel, this is under the GPL-2.0, as the kernel demands of modules that use its interfaces. The rest of the repository is
 * not under the GPL.
 *
 * testhca: RDMA devices without hardware, for tests of what a kernel does with real ones.
 *
 * A device of this module hangs below a PCI function, as those of mlx5, and the kernel may move it to another network namespace, which it
 * refuses for rdma_rxe. Its packets go nowhere: what is sent is complete at once, and nothing is ever received. All else is the kernel's:
 * ib_core, ib_uverbs, ib_umad, ib_ipoib, sysfs and netlink see a device with ports, GIDs, partition keys, counters and events.
 *
 * Commands are written to /sys/module/testhca/parameters/command:
 *
 *	add NAME FUNCTION LAYER PORTS INTERFACE	LAYER: infiniband, ethernet or efa; INTERFACE: of the first port, or -
 *	subfunction NAME FUNCTION NUMBER	an Ethernet device below an auxiliary device of FUNCTION, as mlx5's scalable functions
 *	remove NAME
 *	port NAME PORT up|down			the port's own link, besides its interface's
 */
#include <linux/auxiliary_bus.h>
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_pma.h>
#include <rdma/ib_verbs.h>

#define MAX_PORTS 2
#define GIDS 16

enum layer { INFINIBAND, ETHERNET, EFA };

struct hca {
	struct ib_device ib;
	struct list_head all;
	enum layer layer;
	int number;
	bool down[MAX_PORTS + 1];
	struct net_device *net; /* of the first port; whoever unregisters it unregisters the device */
	struct device *parent;
	struct auxiliary_device *subfunction;
};

struct completion_entry {
	struct list_head list;
	struct ib_wc wc;
};

struct cq {
	struct ib_cq ib;
	spinlock_t lock;
	struct list_head done;
};

struct qp {
	struct ib_qp ib;
	spinlock_t lock;
	struct list_head receives;
	bool ended;
};

/* The core allocates the device's own structures, each with its own first. */
struct pd {
	struct ib_pd ib;
};

struct ah {
	struct ib_ah ib;
};

struct ucontext {
	struct ib_ucontext ib;
};

static LIST_HEAD(hcas);
static DEFINE_MUTEX(hcas_lock);
static int numbers;
static atomic_t qp_numbers = ATOMIC_INIT(2);

static struct hca *of(struct ib_device *ib)
{
	return container_of(ib, struct hca, ib);
}

static u64 port_guid(struct hca *h, u32 port)
{
	return 0x9c63c00300f20000ULL + h->number * 0x100 + port;
}

/* Completions. */

static void complete_one(struct ib_cq *ib, struct completion_entry *e)
{
	struct cq *cq = container_of(ib, struct cq, ib);
	unsigned long flags;

	spin_lock_irqsave(&cq->lock, flags);
	list_add_tail(&e->list, &cq->done);
	spin_unlock_irqrestore(&cq->lock, flags);
	if (ib->comp_handler)
		ib->comp_handler(ib, ib->cq_context);
}

static int hca_create_cq(struct ib_cq *ib, const struct ib_cq_init_attr *attr, struct ib_udata *udata)
{
	struct cq *cq = container_of(ib, struct cq, ib);

	spin_lock_init(&cq->lock);
	INIT_LIST_HEAD(&cq->done);
	ib->cqe = attr->cqe;
	return 0;
}

static int hca_destroy_cq(struct ib_cq *ib, struct ib_udata *udata)
{
	struct cq *cq = container_of(ib, struct cq, ib);
	struct completion_entry *e, *next;

	list_for_each_entry_safe(e, next, &cq->done, list)
		kfree(e);
	return 0;
}

static int hca_poll_cq(struct ib_cq *ib, int most, struct ib_wc *wc)
{
	struct cq *cq = container_of(ib, struct cq, ib);
	unsigned long flags;
	int n;

	spin_lock_irqsave(&cq->lock, flags);
	for (n = 0; n < most && !list_empty(&cq->done); n++) {
		struct completion_entry *e = list_first_entry(&cq->done, struct completion_entry, list);

		list_del(&e->list);
		wc[n] = e->wc;
		kfree(e);
	}
	spin_unlock_irqrestore(&cq->lock, flags);
	return n;
}

static int hca_req_notify_cq(struct ib_cq *ib, enum ib_cq_notify_flags flags)
{
	struct cq *cq = container_of(ib, struct cq, ib);

	/* Every completion calls the handler; the caller polls again for those that came before. */
	return flags & IB_CQ_REPORT_MISSED_EVENTS && !list_empty(&cq->done);
}

/* Queue pairs: sends are complete at once, receives when the queue pair ends. */

static int hca_create_qp(struct ib_qp *ib, struct ib_qp_init_attr *attr, struct ib_udata *udata)
{
	struct qp *qp = container_of(ib, struct qp, ib);

	spin_lock_init(&qp->lock);
	INIT_LIST_HEAD(&qp->receives);
	ib->qp_num = attr->qp_type == IB_QPT_SMI ? 0 : attr->qp_type == IB_QPT_GSI ? 1 : atomic_inc_return(&qp_numbers);
	return 0;
}

static void flush(struct qp *qp)
{
	struct completion_entry *e, *next;
	unsigned long flags;
	LIST_HEAD(receives);

	spin_lock_irqsave(&qp->lock, flags);
	qp->ended = true;
	list_splice_init(&qp->receives, &receives);
	spin_unlock_irqrestore(&qp->lock, flags);
	list_for_each_entry_safe(e, next, &receives, list)
		complete_one(qp->ib.recv_cq, e);
}

static int hca_modify_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_udata *udata)
{
	struct qp *qp = container_of(ib, struct qp, ib);

	if (!(mask & IB_QP_STATE))
		return 0;
	if (attr->qp_state == IB_QPS_ERR)
		flush(qp);
	else
		qp->ended = false;
	return 0;
}

static int hca_query_qp(struct ib_qp *ib, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init)
{
	memset(attr, 0, sizeof(*attr));
	attr->qp_state = container_of(ib, struct qp, ib)->ended ? IB_QPS_ERR : IB_QPS_RTS;
	return 0;
}

static int hca_destroy_qp(struct ib_qp *ib, struct ib_udata *udata)
{
	struct qp *qp = container_of(ib, struct qp, ib);
	struct completion_entry *e, *next;

	list_for_each_entry_safe(e, next, &qp->receives, list)
		kfree(e);
	return 0;
}

static int hca_post_send(struct ib_qp *ib, const struct ib_send_wr *wr, const struct ib_send_wr **bad)
{
	for (; wr; wr = wr->next) {
		struct completion_entry *e = kzalloc(sizeof(*e), GFP_ATOMIC);

		if (!e) {
			*bad = wr;
			return -ENOMEM;
		}
		e->wc.wr_cqe = wr->wr_cqe;
		e->wc.qp = ib;
		e->wc.status = container_of(ib, struct qp, ib)->ended ? IB_WC_WR_FLUSH_ERR : IB_WC_SUCCESS;
		e->wc.opcode = IB_WC_SEND;
		complete_one(ib->send_cq, e);
	}
	return 0;
}

static int hca_post_recv(struct ib_qp *ib, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad)
{
	struct qp *qp = container_of(ib, struct qp, ib);
	unsigned long flags;

	for (; wr; wr = wr->next) {
		struct completion_entry *e = kzalloc(sizeof(*e), GFP_ATOMIC);

		if (!e) {
			*bad = wr;
			return -ENOMEM;
		}
		e->wc.wr_cqe = wr->wr_cqe;
		e->wc.qp = ib;
		e->wc.status = IB_WC_WR_FLUSH_ERR;
		e->wc.opcode = IB_WC_RECV;
		spin_lock_irqsave(&qp->lock, flags);
		if (!qp->ended) {
			list_add_tail(&e->list, &qp->receives);
			e = NULL;
		}
		spin_unlock_irqrestore(&qp->lock, flags);
		if (e)
			complete_one(ib->recv_cq, e);
	}
	return 0;
}

/* What is needed, and has nothing to do. */

static int hca_alloc_pd(struct ib_pd *pd, struct ib_udata *udata) { return 0; }
static int hca_dealloc_pd(struct ib_pd *pd, struct ib_udata *udata) { return 0; }
static int hca_alloc_ucontext(struct ib_ucontext *context, struct ib_udata *udata) { return 0; }
static void hca_dealloc_ucontext(struct ib_ucontext *context) {}
static void hca_disassociate_ucontext(struct ib_ucontext *context) {}
static int hca_create_ah(struct ib_ah *ah, struct rdma_ah_init_attr *attr, struct ib_udata *udata) { return 0; }
static int hca_destroy_ah(struct ib_ah *ah, u32 flags) { return 0; }
static int hca_mcast(struct ib_qp *qp, union ib_gid *gid, u16 lid) { return 0; }
static int hca_add_gid(const struct ib_gid_attr *attr, void **context) { return 0; }
static int hca_del_gid(const struct ib_gid_attr *attr, void **context) { return 0; }

static struct ib_mr *hca_get_dma_mr(struct ib_pd *pd, int access)
{
	struct ib_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);

	return mr ? mr : ERR_PTR(-ENOMEM);
}

static struct ib_mr *hca_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 address, int access, struct ib_udata *udata)
{
	return hca_get_dma_mr(pd, access);
}

static int hca_dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	kfree(mr);
	return 0;
}

/* What a device says of itself. */

static int hca_query_device(struct ib_device *ib, struct ib_device_attr *attr, struct ib_udata *udata)
{
	memset(attr, 0, sizeof(*attr));
	attr->sys_image_guid = cpu_to_be64(port_guid(of(ib), 0));
	attr->vendor_id = 0x02c9;
	attr->max_mr_size = -1;
	attr->page_size_cap = PAGE_SIZE;
	attr->max_qp = attr->max_cq = attr->max_mr = attr->max_pd = attr->max_ah = 1024;
	attr->max_qp_wr = attr->max_cqe = 16384;
	attr->max_send_sge = attr->max_recv_sge = attr->max_sge_rd = 32;
	attr->max_pkeys = 2;
	return 0;
}

static bool carries(struct hca *h, u32 port)
{
	return !h->down[port] && (port != 1 || !h->net || (netif_running(h->net) && netif_carrier_ok(h->net)));
}

static int hca_query_port(struct ib_device *ib, u32 port, struct ib_port_attr *attr)
{
	struct hca *h = of(ib);
	bool up = carries(h, port);

	/* The core has set all fields to 0, and in 6.1 the GID's prefix is read beside. */
	attr->state = up ? IB_PORT_ACTIVE : IB_PORT_DOWN;
	attr->phys_state = up ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	attr->max_mtu = attr->active_mtu = IB_MTU_4096;
	attr->gid_tbl_len = h->layer == ETHERNET ? GIDS : 1;
	attr->pkey_tbl_len = 2;
	attr->max_msg_sz = 1 << 30;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_NDR;
	attr->max_vl_num = 1;
	if (h->layer == INFINIBAND) {
		attr->lid = h->number * 4 + port;
		attr->sm_lid = 1;
		attr->port_cap_flags = IB_PORT_SM_DISABLED;
	}
	attr->ip_gids = h->layer == ETHERNET;
	return 0;
}

static enum rdma_link_layer hca_get_link_layer(struct ib_device *ib, u32 port)
{
	switch (of(ib)->layer) {
	case INFINIBAND:
		return IB_LINK_LAYER_INFINIBAND;
	case ETHERNET:
		return IB_LINK_LAYER_ETHERNET;
	default:
		return IB_LINK_LAYER_UNSPECIFIED; /* what efa_port_link_layer says */
	}
}

static int hca_get_port_immutable(struct ib_device *ib, u32 port, struct ib_port_immutable *immutable)
{
	struct hca *h = of(ib);

	immutable->gid_tbl_len = h->layer == ETHERNET ? GIDS : 1;
	immutable->pkey_tbl_len = 2;
	if (h->layer == EFA)
		return 0;
	immutable->core_cap_flags = h->layer == INFINIBAND ? RDMA_CORE_PORT_IBA_IB : RDMA_CORE_PORT_IBA_ROCE | RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static int hca_query_gid(struct ib_device *ib, u32 port, int index, union ib_gid *gid)
{
	gid->global.subnet_prefix = cpu_to_be64(0xfe80000000000000ULL);
	gid->global.interface_id = cpu_to_be64(port_guid(of(ib), port));
	return 0;
}

static int hca_query_pkey(struct ib_device *ib, u32 port, u16 index, u16 *pkey)
{
	*pkey = index == 0 ? 0xffff : 0x8002;
	return 0;
}

static void hca_get_dev_fw_str(struct ib_device *ib, char *text)
{
	snprintf(text, IB_FW_VERSION_NAME_MAX, "28.41.1000");
}

/* The core reads the counters of a port as a subnet manager would. */
static int hca_process_mad(struct ib_device *ib, int flags, u32 port, const struct ib_wc *wc, const struct ib_grh *grh,
			   const struct ib_mad *in, struct ib_mad *out, size_t *size, u16 *pkey)
{
	if (in->mad_hdr.mgmt_class != IB_MGMT_CLASS_PERF_MGMT)
		return IB_MAD_RESULT_SUCCESS;
	if (in->mad_hdr.attr_id == IB_PMA_CLASS_PORT_INFO) {
		struct ib_class_port_info *info = (void *)(out->data + 40);

		info->capability_mask = IB_PMA_CLASS_CAP_EXT_WIDTH;
	}
	return IB_MAD_RESULT_SUCCESS | IB_MAD_RESULT_REPLY;
}

static const struct rdma_stat_desc stats[] = { { .name = "rx_bytes" }, { .name = "tx_bytes" }, { .name = "rx_drops" } };

static struct rdma_hw_stats *hca_alloc_hw_port_stats(struct ib_device *ib, u32 port)
{
	return rdma_alloc_hw_stats_struct(stats, ARRAY_SIZE(stats), RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

static int hca_get_hw_stats(struct ib_device *ib, struct rdma_hw_stats *s, u32 port, int index)
{
	s->value[0] = 1024;
	s->value[1] = 2048;
	s->value[2] = 3;
	return ARRAY_SIZE(stats);
}

static ssize_t board_id_show(struct device *dev, struct device_attribute *attribute, char *buffer)
{
	return sysfs_emit(buffer, "MT_0000000838\n");
}
static DEVICE_ATTR_RO(board_id);

static struct attribute *device_attributes[] = { &dev_attr_board_id.attr, NULL };
static const struct attribute_group device_group = { .attrs = device_attributes };

static void hca_dealloc_driver(struct ib_device *ib)
{
	struct hca *h = of(ib);

	mutex_lock(&hcas_lock);
	list_del_init(&h->all);
	mutex_unlock(&hcas_lock);
	if (h->subfunction) {
		auxiliary_device_delete(h->subfunction);
		auxiliary_device_uninit(h->subfunction);
	}
	put_device(h->parent);
}

/* Every device has these. */
static const struct ib_device_ops common_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_MLX5,
	.uverbs_abi_ver = 1,
	.alloc_hw_port_stats = hca_alloc_hw_port_stats,
	.alloc_pd = hca_alloc_pd,
	.alloc_ucontext = hca_alloc_ucontext,
	.create_cq = hca_create_cq,
	.create_qp = hca_create_qp,
	.dealloc_driver = hca_dealloc_driver,
	.dealloc_pd = hca_dealloc_pd,
	.dealloc_ucontext = hca_dealloc_ucontext,
	.dereg_mr = hca_dereg_mr,
	.destroy_cq = hca_destroy_cq,
	.destroy_qp = hca_destroy_qp,
	.disassociate_ucontext = hca_disassociate_ucontext,
	.get_dev_fw_str = hca_get_dev_fw_str,
	.get_hw_stats = hca_get_hw_stats,
	.get_link_layer = hca_get_link_layer,
	.get_port_immutable = hca_get_port_immutable,
	.modify_qp = hca_modify_qp,
	.query_device = hca_query_device,
	.query_gid = hca_query_gid,
	.query_pkey = hca_query_pkey,
	.query_port = hca_query_port,
	.query_qp = hca_query_qp,
	.reg_user_mr = hca_reg_user_mr,
	INIT_RDMA_OBJ_SIZE(ib_cq, cq, ib),
	INIT_RDMA_OBJ_SIZE(ib_pd, pd, ib),
	INIT_RDMA_OBJ_SIZE(ib_qp, qp, ib),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, ucontext, ib),
};

/* Devices that the kernel itself uses, for management datagrams and IPoIB; EFA's serve programs alone, and have no counters but their own.
 */
static const struct ib_device_ops kernel_ops = {
	.add_gid = hca_add_gid,
	.attach_mcast = hca_mcast,
	.create_ah = hca_create_ah,
	.del_gid = hca_del_gid,
	.destroy_ah = hca_destroy_ah,
	.detach_mcast = hca_mcast,
	.device_group = &device_group,
	.get_dma_mr = hca_get_dma_mr,
	.poll_cq = hca_poll_cq,
	.post_recv = hca_post_recv,
	.post_send = hca_post_send,
	.process_mad = hca_process_mad,
	.req_notify_cq = hca_req_notify_cq,
	INIT_RDMA_OBJ_SIZE(ib_ah, ah, ib),
};

static void tell(struct hca *h, u32 port)
{
	struct ib_event event = { .device = &h->ib, .event = carries(h, port) ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR };

	event.element.port_num = port;
	ib_dispatch_event(&event);
}

static int make(
	const char *name, struct device *parent, struct auxiliary_device *subfunction, enum layer layer, int ports, struct net_device *net)
{
	struct hca *h = ib_alloc_device(hca, ib);
	int err;

	if (!h)
		return -ENOMEM;
	INIT_LIST_HEAD(&h->all);
	h->layer = layer;
	h->number = ++numbers;
	h->parent = get_device(parent);
	h->ib.dev.parent = parent;
	h->ib.node_type = layer == EFA ? RDMA_NODE_UNSPECIFIED : RDMA_NODE_IB_CA;
	h->ib.node_guid = cpu_to_be64(port_guid(h, 0));
	h->ib.phys_port_cnt = ports;
	h->ib.num_comp_vectors = 1;
	ib_set_device_ops(&h->ib, &common_ops);
	if (layer != EFA)
		ib_set_device_ops(&h->ib, &kernel_ops);
	/* A port whose interface the core is to know by; it also makes the port's GIDs. */
	if (net && layer == ETHERNET) {
		err = ib_device_set_netdev(&h->ib, net, 1);
		if (err)
			goto free;
	}
	h->net = layer == ETHERNET ? net : NULL;
	err = ib_register_device(&h->ib, name, NULL);
	if (err)
		goto free;
	mutex_lock(&hcas_lock);
	h->subfunction = subfunction;
	list_add_tail(&h->all, &hcas);
	mutex_unlock(&hcas_lock);
	return 0;
free:
	/* ib_dealloc_device calls dealloc_driver, which gives the parent back. */
	ib_dealloc_device(&h->ib);
	return err;
}

static void release_subfunction(struct device *dev)
{
	kfree(to_auxiliary_dev(dev));
}

static int make_subfunction(const char *name, struct device *function, unsigned int number)
{
	struct auxiliary_device *sf = kzalloc(sizeof(*sf), GFP_KERNEL);
	int err;

	if (!sf)
		return -ENOMEM;
	sf->name = "sf";
	sf->id = number;
	sf->dev.parent = function;
	sf->dev.release = release_subfunction;
	err = auxiliary_device_init(sf);
	if (err) {
		kfree(sf);
		return err;
	}
	err = __auxiliary_device_add(sf, "mlx5_core");
	if (err) {
		auxiliary_device_uninit(sf);
		return err;
	}
	err = make(name, &sf->dev, sf, ETHERNET, 1, NULL);
	if (err) {
		auxiliary_device_delete(sf);
		auxiliary_device_uninit(sf);
	}
	return err;
}

static struct pci_dev *function_of(const char *text)
{
	unsigned int domain, bus, slot, function;

	if (sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4)
		return NULL;
	return pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));
}

/* named returns the device of that name, held. */
static struct hca *named(const char *name)
{
	struct hca *h, *found = NULL;

	mutex_lock(&hcas_lock);
	list_for_each_entry(h, &hcas, all)
		if (!strcmp(dev_name(&h->ib.dev), name) && ib_device_try_get(&h->ib))
			found = h;
	mutex_unlock(&hcas_lock);
	return found;
}

static int command(const char *text, const struct kernel_param *param)
{
	char name[IB_DEVICE_NAME_MAX], function[16], layer[16], interface[IFNAMSIZ], state[8];
	struct net_device *net = NULL;
	struct pci_dev *pci;
	struct hca *h;
	int number, err;

	if (sscanf(text, "add %63s %15s %15s %d %15s", name, function, layer, &number, interface) == 5) {
		enum layer kind = !strcmp(layer, "infiniband") ? INFINIBAND : !strcmp(layer, "ethernet") ? ETHERNET : EFA;

		if (number < 1 || number > MAX_PORTS)
			return -EINVAL;
		pci = function_of(function);
		if (!pci)
			return -ENODEV;
		if (strcmp(interface, "-"))
			net = dev_get_by_name(&init_net, interface);
		err = make(name, &pci->dev, NULL, kind, number, net);
		if (net)
			dev_put(net);
		pci_dev_put(pci);
		return err;
	}
	if (sscanf(text, "subfunction %63s %15s %d", name, function, &number) == 3) {
		pci = function_of(function);
		if (!pci)
			return -ENODEV;
		err = make_subfunction(name, &pci->dev, number);
		pci_dev_put(pci);
		return err;
	}
	if (sscanf(text, "remove %63s", name) == 1) {
		h = named(name);
		if (!h)
			return -ENODEV;
		ib_unregister_device_and_put(&h->ib);
		return 0;
	}
	if (sscanf(text, "port %63s %d %7s", name, &number, state) == 3) {
		h = named(name);
		if (!h)
			return -ENODEV;
		err = number >= 1 && number <= h->ib.phys_port_cnt ? 0 : -EINVAL;
		if (!err) {
			h->down[number] = !strcmp(state, "down");
			tell(h, number);
		}
		ib_device_put(&h->ib);
		return err;
	}
	return -EINVAL;
}

static const struct kernel_param_ops command_ops = { .set = command };
module_param_cb(command, &command_ops, NULL, 0200);

static int net_event(struct notifier_block *block, unsigned long what, void *data)
{
	struct net_device *net = netdev_notifier_info_to_dev(data);
	struct ib_device *ib = ib_device_get_by_netdev(net, RDMA_DRIVER_MLX5);
	struct hca *h;

	if (!ib)
		return NOTIFY_DONE;
	h = of(ib);
	switch (what) {
	case NETDEV_UNREGISTER:
		/* An interface that changes its network namespace is only unregistered there. */
		if (net->reg_state == NETREG_UNREGISTERING)
			ib_unregister_device_queued(&h->ib);
		break;
	case NETDEV_UP:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		tell(h, 1);
	}
	ib_device_put(&h->ib);
	return NOTIFY_DONE;
}

static struct notifier_block net_events = { .notifier_call = net_event };

static int __init testhca_init(void)
{
	return register_netdevice_notifier(&net_events);
}

static void __exit testhca_exit(void)
{
	unregister_netdevice_notifier(&net_events);
	ib_unregister_driver(RDMA_DRIVER_MLX5);
}

module_init(testhca_init);
module_exit(testhca_exit);
MODULE_DESCRIPTION("RDMA devices without hardware, for tests");
MODULE_LICENSE("GPL");
