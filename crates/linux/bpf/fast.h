/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * What the programs of the fast path share: their maps, which packets they take, and how a flow is
 * known (docs/spec/policy.md section 4.1, docs/spec/dataplane.md section 4).
 *
 * The kernel's path decides about every flow: a packet of an unknown flow leaves a note in `notes`
 * and takes that path. If it comes out at the other side of routes, policies and address
 * translation with the same addresses and ports, fast_learn makes the note a flow. Only later packets
 * that come in through the same link take the fast path, until the epoch changes.
 */
#ifndef FAST_H
#define FAST_H

#include "packet.h"

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
/* Outer IPv4 or IPv6, UDP and VXLAN headers, and the inner Ethernet header. */
#define VXLAN_BYTES 50
#define VXLAN_IPV6_BYTES 70
/*
 * In each direction, one packet of a flow takes the kernel's path in this time, which keeps the
 * connection's entry in the connection tracking: its shortest limit is 30 s.
 */
#define THROUGH_KERNEL_NS 20000000000ull
/* How many notes a processor keeps. */
#define NOTES_BITS 8
#define NOTES (1 << NOTES_BITS)
/* The upper mark of ECN: congestion. */
#define ECN_CONGESTED 3

struct ipv6 {
	u32 version_class_label;
	u16 bytes;
	u8 next;
	u8 ttl;
	u32 from[4];
	u32 to[4];
} __attribute__((packed));

/* So much of UDP's header is read. */
#define PORTS_BYTES 8

struct vxlan {
	u32 flags;
	u32 vni;
} __attribute__((packed));

#define VXLAN_FLAGS ntohl(0x08000000)

/* An address in network byte order; IPv4 as `::ffff:0:0/96`. */
struct address {
	u32 words[4];
};

/* What flows are told apart by. Ports are in network byte order. */
struct tuple {
	struct address from;
	struct address to;
	u16 from_port;
	u16 to_port;
	u32 protocol;
};

/*
 * A packet that takes the kernel's path, until it is seen to leave that. Notes are those of a processor, which
 * carries a packet from one end of the path to the other; of two in one place, the last one counts. The packet
 * itself has the epoch, too (`tc_index`): one that was held up, and judged by what was in force before, is
 * not taken for a later one.
 */
struct note {
	struct tuple tuple;
	/* Where the kernel's path sees it come in. */
	u32 ifindex;
	u32 epoch;
	/* The number in `nodes` of the node at the other end, 0 without one: from a pod where it goes to, and in
	 * a tunnel where it comes from. */
	u32 node;
	/* Of the pod that sends it; 0 if that is elsewhere. */
	u32 from_place;
	/* Whether it takes the kernel's way out of the tunnel, too. */
	u32 is_of_device;
	u32 unused;
};

/* A direction of a flow that the kernel's path has let pass. */
struct flow {
	u32 epoch;
	/* Where it came in, and where it left. */
	u32 ifindex;
	u32 out_ifindex;
	u16 node;
	/* Of the pod that sends it; 0 if that is elsewhere. */
	u16 from_place;
	u64 through_kernel_ns;
	/* The epoch in which the other direction was known, too. */
	u32 answered_epoch;
	/* Of a connection whose beginning was seen: the number of the readings by then, with its side of it (BEGUN); else
	 * 0. */
	u32 begun;
	/* What the fast path carried of it. */
	u64 packets;
	u64 bytes;
};

/* Connections that have ended, and differ in the asking side's port only: one direction of them. */
struct ended {
	struct tuple tuple; /* with 0 as that port */
	u32 ifindex;
	u32 out_ifindex;
};

/* What the fast path carried of them. */
struct ended_sum {
	u64 packets;
	u64 bytes;
	/* The asking side's port of one of them. */
	u16 port;
	u16 unused[3];
};

/* What the fast path carried of a pod's interface, by the interface's place. */
struct traffic {
	struct carried from_pod;
	struct carried to_pod;
};

/* A pod of this node. */
struct endpoint {
	u32 ifindex; /* of the host end of its veth */
	u32 mtu;
	u8 pod_mac[6];
	u8 host_mac[6];
	u32 place;
};

/*
 * How packets get there: as they are; with outer headers of IPv4, which the programs make; with those of IPv6, which
 * the tunnel's device makes. UDP over IPv6 needs a checksum (RFC 8200), and no program can ask for one for a packet
 * that is still to be segmented.
 */
enum { NODE_DIRECT = 1, NODE_VXLAN = 2, NODE_VXLAN_IPV6 = 3 };

/* Another node, or a part of its addresses with a next hop of their own. */
struct node {
	u32 kind; /* 0 in unused places */
	/* The link that the kernel's path uses: the tunnel's device, or the uplink. */
	u32 via_ifindex;
	u32 mtu; /* of packets without the outer headers */
	u32 out_ifindex; /* the uplink */
	struct next_hop next_hop;
	struct address address; /* VXLAN: the outer addresses */
	struct address own_address;
	u32 vni; /* as the header has it */
	u16 port; /* in network byte order */
	u8 inner_to[6];
	u8 inner_from[6];
	u8 unused[2];
};

/* When an outer packet was last seen to have passed the kernel's path, and in which epoch. */
struct passed {
	u32 epoch;
	u32 unused;
	u64 at_ns;
};

/*
 * The tunnel to a node. The kernel decides about outer packets, too: while it lets none pass (rules for the
 * tunnel's port), or lets them leave as others (IPsec), no program makes or takes them.
 */
struct tunnel {
	struct passed sent;
	struct passed received;
};

/* What a processor has handed to the tunnel's device, until its outer packet is seen at the uplink. */
struct handed {
	u32 epoch;
	u32 node;
};

struct prefix {
	u32 bits;
	struct address address;
};

/* What is in `settings`. */
enum {
	/* Changes whenever something that was allowed may be allowed no longer. 0: nothing is carried or learnt. */
	SETTING_EPOCH,
	/* The agent adds one before it reads what was carried of each flow, and one behind it. */
	SETTING_READINGS,
	/* The ifindex of the tunnel's device whose outer headers are of IPv4; 0 for none. */
	SETTING_VXLAN_IFINDEX,
	SETTING_VXLAN_PORT, /* in network byte order */
	SETTING_VXLAN_VNI, /* as the header has it */
	/* The same of IPv6. */
	SETTING_VXLAN_IPV6_IFINDEX,
	SETTING_VXLAN_IPV6_PORT,
	SETTING_VXLAN_IPV6_VNI,
	SETTINGS,
};

MAP(settings) = { BPF_MAP_TYPE_ARRAY, sizeof(u32), sizeof(u32), SETTINGS, 0 };
MAP(endpoints) = { BPF_MAP_TYPE_HASH, sizeof(struct address), sizeof(struct endpoint), 8192, BPF_F_NO_PREALLOC };
MAP(prefixes) = { BPF_MAP_TYPE_LPM_TRIE, sizeof(struct prefix), sizeof(u32), 65536, BPF_F_NO_PREALLOC };
MAP(nodes) = { BPF_MAP_TYPE_ARRAY, sizeof(u32), sizeof(struct node), 16384, 0 };
/* By the numbers of nodes. */
MAP(tunnels) = { BPF_MAP_TYPE_ARRAY, sizeof(u32), sizeof(struct tunnel), 16384, 0 };
MAP(handed) = { BPF_MAP_TYPE_PERCPU_ARRAY, sizeof(u32), sizeof(struct handed), 1, 0 };
MAP(flows) = { BPF_MAP_TYPE_LRU_HASH, sizeof(struct tuple), sizeof(struct flow), 65536, 0 };
MAP(ended) = { BPF_MAP_TYPE_LRU_HASH, sizeof(struct ended), sizeof(struct ended_sum), 2048, 0 };
/* What the fast path carried in all, by processor: packets and bytes. */
MAP(carried) = { BPF_MAP_TYPE_PERCPU_ARRAY, sizeof(u32), sizeof(struct carried), 1, 0 };
/* The first place is of no interface. */
MAP(traffic) = { BPF_MAP_TYPE_PERCPU_ARRAY, sizeof(u32), sizeof(struct traffic), 1024, 0 };
/* The places of pods' host ends by their indexes. */
MAP(places) = { BPF_MAP_TYPE_HASH, sizeof(u32), sizeof(u32), 1024, BPF_F_NO_PREALLOC };
MAP(notes) = { BPF_MAP_TYPE_PERCPU_ARRAY, sizeof(u32), sizeof(struct note), NOTES, 0 };

/* Where in a connection a packet is. */
enum stage {
	/* Within it: the fast path may carry it. */
	STAGE_WITHIN,
	/* The same, without payload: by itself it makes no direction known, because a connection that has ended still
	 * has such packets. */
	STAGE_ACKNOWLEDGES,
	/* It asks for a connection: the kernel's path carries it, and its direction is learnt. */
	STAGE_ASKS,
	/* It accepts one: the same. */
	STAGE_ACCEPTS,
	/* It ends the connection, or has flags that belong to no other stage: the kernel's path carries it. */
	STAGE_ENDS,
};

INLINE u32 setting(u32 index)
{
	u32 *value = bpf_map_lookup_elem(&settings, &index);

	return value ? *value : 0;
}

INLINE void set_ipv4(struct address *address, u32 word)
{
	address->words[2] = ntohl(0x0000ffff);
	address->words[3] = word;
}

INLINE void set_ipv6(struct address *address, const u32 *words)
{
	__builtin_memcpy(address->words, words, sizeof(address->words));
}

/*
 * Reads the packet whose IP header is at `ip`: its tuple, its stage, and how many bytes its segments
 * have at most on the wire, from the IP header on. Returns 0 for a packet that the fast path does not
 * take: with options, a fragment, at the end of its life, of another protocol, or UDP that is to be
 * segmented.
 */
INLINE u32 read_packet(struct __sk_buff *skb, void *ip, u32 ip_bytes, u16 type, struct tuple *tuple,
		       enum stage *stage)
{
	void *end = (void *)(u64)skb->data_end;
	u32 gso_size = skb->gso_size;
	struct transport *transport;
	u32 header_bytes, known_bytes;

	if (type == ETH_P_IP) {
		struct ipv4 *ipv4 = ip;

		if ((void *)(ipv4 + 1) > end || ipv4->version_length != 0x45 || ipv4->ttl <= 1 ||
		    (ipv4->fragment & FRAGMENTED))
			return 0;
		set_ipv4(&tuple->from, ipv4->from);
		set_ipv4(&tuple->to, ipv4->to);
		tuple->protocol = ipv4->protocol;
		transport = (void *)(ipv4 + 1);
		header_bytes = sizeof(*ipv4);
		known_bytes = htons(ipv4->bytes);
	} else if (type == ETH_P_IPV6) {
		struct ipv6 *ipv6 = ip;

		/* Addresses that begin with zeroes might be those of IPv4, as the maps have them. */
		if ((void *)(ipv6 + 1) > end || ipv6->ttl <= 1 || !ipv6->from[0] || !ipv6->to[0])
			return 0;
		set_ipv6(&tuple->from, ipv6->from);
		set_ipv6(&tuple->to, ipv6->to);
		tuple->protocol = ipv6->next;
		transport = (void *)(ipv6 + 1);
		header_bytes = sizeof(*ipv6);
		known_bytes = htons(ipv6->bytes) + sizeof(*ipv6);
	} else {
		return 0;
	}
	if (tuple->protocol == IPPROTO_TCP) {
		u8 flags;

		if ((void *)(transport + 1) > end)
			return 0;
		header_bytes += (transport->offset >> 4) * 4;
		flags = transport->flags & (TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK);
		if (flags == TCP_SYN)
			*stage = STAGE_ASKS;
		else if (flags == (TCP_SYN | TCP_ACK))
			*stage = STAGE_ACCEPTS;
		else if (flags & (TCP_FIN | TCP_SYN | TCP_RST))
			*stage = STAGE_ENDS;
		else if (!gso_size && known_bytes == header_bytes)
			*stage = STAGE_ACKNOWLEDGES;
	} else if (tuple->protocol != IPPROTO_UDP || gso_size || (void *)transport + PORTS_BYTES > end) {
		return 0;
	}
	tuple->from_port = transport->from;
	tuple->to_port = transport->to;
	return gso_size ? gso_size + header_bytes : ip_bytes;
}

INLINE void reverse(const struct tuple *tuple, struct tuple *reversed)
{
	reversed->from = tuple->to;
	reversed->to = tuple->from;
	reversed->from_port = tuple->to_port;
	reversed->to_port = tuple->from_port;
	reversed->protocol = tuple->protocol;
}

/* Whether the other direction of a flow is known in this epoch. */
INLINE int is_answered(const struct tuple *tuple, u32 epoch)
{
	struct tuple reversed = {};
	struct flow *answer;

	reverse(tuple, &reversed);
	answer = bpf_map_lookup_elem(&flows, &reversed);
	return answer && answer->epoch == epoch;
}

/*
 * The flow of a packet that came in through `ifindex`, if the fast path may carry it. A connection
 * of TCP must be known in both directions; UDP may have no answers.
 */
INLINE struct flow *known_flow(const struct tuple *tuple, u32 ifindex, u32 epoch, u64 now_ns)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, tuple);

	if (!flow || flow->epoch != epoch || flow->ifindex != ifindex ||
	    now_ns >= flow->through_kernel_ns + THROUGH_KERNEL_NS)
		return 0;
	if (tuple->protocol == IPPROTO_TCP && flow->answered_epoch != epoch) {
		if (!is_answered(tuple, epoch))
			return 0;
		flow->answered_epoch = epoch;
	}
	return flow;
}

/* The sides of a connection, and what a flow has of a connection that begins. */
enum { SIDE_ASKS = 1, SIDE_ACCEPTS = 2 };
#define BEGUN(readings, side) ((readings) << 2 | (side))

/* Counts what was carried of a direction as of connections that have ended. */
INLINE void count_ended(const struct tuple *tuple, const struct flow *flow)
{
	struct ended key = { .tuple = *tuple, .ifindex = flow->ifindex, .out_ifindex = flow->out_ifindex };
	struct ended_sum first = { .packets = flow->packets, .bytes = flow->bytes };
	struct ended_sum *sum;

	if ((flow->begun & 3) == SIDE_ASKS) {
		first.port = tuple->from_port;
		key.tuple.from_port = 0;
	} else {
		first.port = tuple->to_port;
		key.tuple.to_port = 0;
	}
	sum = bpf_map_lookup_elem(&ended, &key);
	if (!sum && bpf_map_update_elem(&ended, &key, &first, BPF_NOEXIST))
		sum = bpf_map_lookup_elem(&ended, &key);
	if (sum) {
		__sync_fetch_and_add(&sum->packets, first.packets);
		__sync_fetch_and_add(&sum->bytes, first.bytes);
	}
}

/*
 * Forgets a direction that asks for a connection, accepts it or ends it, so that no packet of the next one
 * with the same ports is carried before its own are learnt. What was carried is counted as of ended
 * connections, if the agent has not read the flow; else it stays until the agent has, or the map needs the room.
 */
INLINE void forget(const struct tuple *tuple, u32 ifindex)
{
	struct flow *flow = bpf_map_lookup_elem(&flows, tuple);
	u32 readings = setting(SETTING_READINGS);

	if (!flow || flow->ifindex != ifindex)
		return;
	flow->epoch = 0;
	flow->answered_epoch = 0;
	/* While the agent reads, it may have read the flow or not. */
	if (!(flow->begun & 3) || flow->begun >> 2 != readings || (readings & 1))
		return;
	if (flow->packets)
		count_ended(tuple, flow);
	bpf_map_delete_elem(&flows, tuple);
}

/* The place of a packet's note. */
INLINE struct note *note_at(const struct tuple *tuple)
{
	u32 ports = (u32)tuple->from_port << 16 | tuple->to_port;
	u32 mixed = (tuple->from.words[3] ^ tuple->from.words[2]) * 0x85ebca6b;
	u32 at;

	mixed = (mixed ^ tuple->to.words[3] ^ tuple->to.words[2]) * 0xc2b2ae35;
	at = ((mixed ^ ports ^ tuple->protocol) * 0x9e3779b1) >> (32 - NOTES_BITS);
	return bpf_map_lookup_elem(&notes, &at);
}

INLINE int is_same(const struct tuple *a, const struct tuple *b)
{
	const u64 *x = (const void *)a, *y = (const void *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3] && x[4] == y[4];
}

/* Notes that a packet takes the kernel's path. */
INLINE void leave_note(struct __sk_buff *skb, const struct note *note)
{
	struct note *place = note_at(&note->tuple);

	if (place)
		*place = *note;
	skb->tc_index = (u16)note->epoch;
}

/* The note of a packet that leaves the kernel's path as it has come in; none in another epoch. */
INLINE struct note *note_of(struct __sk_buff *skb, const struct tuple *tuple, u32 epoch)
{
	struct note *note = note_at(tuple);

	return note && note->epoch == epoch && skb->tc_index == (u16)epoch && note->ifindex == skb->ingress_ifindex &&
			       is_same(&note->tuple, tuple) ?
		       note :
		       0;
}

INLINE void add(struct carried *sum, u32 bytes)
{
	sum->packets += 1;
	sum->bytes += bytes;
}

INLINE struct traffic *traffic_at(u32 place)
{
	return place ? bpf_map_lookup_elem(&traffic, &place) : 0;
}

/* Counts a packet of a flow, which goes to the pod at the place `to`; 0 if that is elsewhere. */
INLINE void count(struct flow *flow, u32 bytes, u32 to)
{
	u32 all = 0;
	struct carried *carried_here = bpf_map_lookup_elem(&carried, &all);
	struct traffic *from_pod = traffic_at(flow->from_place);
	struct traffic *to_pod = traffic_at(to);

	/* Two processors may carry packets of a flow at once. */
	__sync_fetch_and_add(&flow->packets, 1);
	__sync_fetch_and_add(&flow->bytes, bytes);
	if (carried_here)
		add(carried_here, bytes);
	if (from_pod)
		add(&from_pod->from_pod, bytes);
	if (to_pod)
		add(&to_pod->to_pod, bytes);
}

/*
 * As a router does. IPv6 has no checksum of its header,
 * so that the sum changes that a network card has made of the whole packet; the hop limit is a lower byte.
 */
INLINE void decrement_ttl(struct __sk_buff *skb, void *ip, u16 type)
{
	if (type == ETH_P_IP) {
		decrement_ipv4_ttl(ip);
	} else {
		((struct ipv6 *)ip)->ttl--;
		bpf_csum_update(skb, htons(0xfffe));
	}
}

#endif
