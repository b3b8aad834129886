// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * Runs on packets to a pod. It passes packets with a verdict, and ARP. So pods stay unreachable
 * while the rules are missing, incomplete or being replaced: hooks do not change all at once, and a
 * packet in transit may miss one.
 */
#include "sdn.h"

TC_PROGRAM sdn_delivery(struct __sk_buff *skb)
{
	/* Ordered by frequency. */
	if (skb->protocol == ETH_P_IP)
		return skb->mark & PASSED ? TC_ACT_OK : TC_ACT_SHOT;
	return skb->protocol == ETH_P_ARP ? TC_ACT_OK : TC_ACT_SHOT;
}
