// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets to other nodes. The node's address in the destination MAC becomes the remote end,
 * the network ID in the mark becomes the VNI, and the inner destination becomes the MAC, as peers
 * with Open vSwitch expect. The mark is cleared, because it would select routes and rules for the
 * outer packet.
 */
#include "sdn.h"

/* `0a:58`, the first octets of the MACs of pods, and of nodes in our neighbour entries. */
#define MAC_PREFIX htons(0x0a58)
/* Where the other four octets of the destination MAC are in a frame. */
#define MAC_ADDRESS 2
/* The outer TTL, as Open vSwitch has it. */
#define TTL 64

/* The headers of Ethernet and IPv4, behind two bytes that align the addresses. */
struct headers {
	u16 unused;
	u16 mac_prefix;
	u32 mac_address;
	u8 source_mac[6];
	u16 type;
	u8 ip[16];
	u32 destination;
};

#define HEADERS_BYTES (sizeof(struct headers) - sizeof(u16))

TC_PROGRAM sdn_egress(struct __sk_buff *skb)
{
	struct bpf_tunnel_key key = {};
	struct headers headers;

	/*
	 * Packets other than IPv4 (replies to a peer's ARP request) have their tunnel metadata
	 * already; vxlan drops those without.
	 */
	if (skb->protocol != ETH_P_IP)
		return TC_ACT_OK;
	if (!(skb->mark & STAMPED))
		return TC_ACT_SHOT;
	if (bpf_skb_load_bytes(skb, 0, &headers.mac_prefix, HEADERS_BYTES))
		return TC_ACT_SHOT;
	if (headers.mac_prefix != MAC_PREFIX)
		return TC_ACT_SHOT;
	key.remote_ipv4[0] = ntohl(headers.mac_address);
	key.tunnel_id = skb->mark & NETID_MASK;
	key.ttl = TTL;
	if (bpf_skb_set_tunnel_key(skb, &key, sizeof(key), 0))
		return TC_ACT_SHOT;
	if (bpf_skb_store_bytes(skb, MAC_ADDRESS, &headers.destination, sizeof(headers.destination), 0))
		return TC_ACT_SHOT;
	skb->mark = 0;
	return TC_ACT_OK;
}
