// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Of the benchmark's model of data paths that leave VXLAN to a device with metadata: it runs on packets that the device
 * receives, and puts them into their pod.
 */
#include "packet.h"

struct pod {
	u32 ifindex; /* of its host end */
	u8 pod_mac[6];
	u8 host_mac[6];
};

/* The node's pods by their addresses, in network byte order. */
MAP(pods) = { BPF_MAP_TYPE_HASH, sizeof(u32), sizeof(struct pod), 64, 0 };

TC_PROGRAM model_tunnel_receive(struct __sk_buff *skb)
{
	struct ethernet *ethernet = (void *)(u64)skb->data;
	struct ipv4 *ip = (void *)(ethernet + 1);
	struct pod *pod;
	u32 to;

	if (skb->protocol != ETH_P_IP || (void *)(ip + 1) > (void *)(u64)skb->data_end || ip->ttl <= 1)
		return TC_ACT_UNSPEC;
	to = ip->to;
	pod = bpf_map_lookup_elem(&pods, &to);
	if (!pod)
		return TC_ACT_UNSPEC;
	decrement_ipv4_ttl(ip);
	set_macs(ethernet, pod->pod_mac, pod->host_mac);
	/* The device took it for another machine's, by its MAC. */
	bpf_skb_change_type(skb, PACKET_HOST);
	return bpf_redirect_peer(pod->ifindex, 0);
}
