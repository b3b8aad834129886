/* SPDX-License-Identifier: MIT OR GPL-2.0 */
/*
 * The mark by which nf_tables and the programs of OpenShift's tenants communicate
 * (crates/openshift/src/data_path/programs.rs has the same numbers): bit 24 says that the low 24
 * bits are a network ID, bit 25 that the packet may be delivered to a pod.
 */
#ifndef SDN_H
#define SDN_H

#include "russet.h"

#define STAMPED (1u << 24)
#define PASSED (1u << 25)
#define NETID_MASK (STAMPED - 1)

#endif
