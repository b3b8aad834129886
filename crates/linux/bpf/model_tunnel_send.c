// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Of the benchmark's model of data paths that leave VXLAN to a device with metadata: it runs on packets from a pod, and
 * gives those to another node's pods to the device.
 */
#include "packet.h"

/* BPF_F_ZERO_CSUM_TX: no checksum in the outer header. */
#define ZERO_CHECKSUM (1ull << 1)
#define OUTER_TTL 64
#define VNI 1
/* The nodes of the benchmark have /24s. */
#define SUBNET ntohl(0xffffff00)

struct remote {
	u32 address; /* in the machine's byte order */
	u32 device_ifindex;
};

/* The other node, by its pods' subnet. */
MAP(remotes) = { BPF_MAP_TYPE_HASH, sizeof(u32), sizeof(struct remote), 64, 0 };

TC_PROGRAM model_tunnel_send(struct __sk_buff *skb)
{
	struct ethernet *ethernet = (void *)(u64)skb->data;
	struct ipv4 *ip = (void *)(ethernet + 1);
	struct bpf_tunnel_key key = { .tunnel_id = VNI, .ttl = OUTER_TTL };
	struct remote *remote;
	u32 subnet;

	if (skb->protocol != ETH_P_IP || (void *)(ip + 1) > (void *)(u64)skb->data_end || ip->ttl <= 1)
		return TC_ACT_UNSPEC;
	subnet = ip->to & SUBNET;
	remote = bpf_map_lookup_elem(&remotes, &subnet);
	if (!remote)
		return TC_ACT_UNSPEC;
	decrement_ipv4_ttl(ip);
	key.remote_ipv4[0] = remote->address;
	if (bpf_skb_set_tunnel_key(skb, &key, sizeof(key), ZERO_CHECKSUM))
		return TC_ACT_SHOT;
	return bpf_redirect(remote->device_ifindex, 0);
}
