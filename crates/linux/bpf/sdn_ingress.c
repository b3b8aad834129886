// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets from other nodes. The VNI becomes the mark, and the packet is marked as addressed
 * to this host, whatever destination MAC the sender chose.
 */
#include "sdn.h"

TC_PROGRAM sdn_ingress(struct __sk_buff *skb)
{
	struct bpf_tunnel_key key = {};

	if (skb->protocol != ETH_P_IP)
		return TC_ACT_OK;
	if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), 0))
		return TC_ACT_SHOT;
	skb->mark = (key.tunnel_id & NETID_MASK) | STAMPED;
	bpf_skb_change_type(skb, PACKET_HOST);
	return TC_ACT_OK;
}
