package main

import (
	"fmt"

	"github.com/projectcalico/calico/felix/ipsets"
	"github.com/projectcalico/calico/felix/iptables"
	"github.com/projectcalico/calico/felix/proto"
	"github.com/projectcalico/calico/felix/rules"
)

// Bits of the packet's mark, which Felix takes from its configuration's mask.
const (
	markAccept   = 0x1
	markPass     = 0x2
	markScratch0 = 0x4
	markScratch1 = 0x8
	markEndpoint = 0xff00
	markForeign  = 0x0100
)

// tier is the only tier of this release.
const tier = "default"

// tables are the rules of one family, ready to be interpreted.
type tables struct {
	filter, mangle, raw chains
	sets                map[string]*addresses
}

// render makes Felix' rules of one family. Each policy is called by itself: grouping them is an optimisation of the endpoint manager,
// which is bound to a running dataplane.
func (n *node) render(family uint8) (*tables, error) {
	names := ipsets.NewIPVersionConfig(ipsets.IPFamilyV4, rules.IPSetNamePrefix, nil, nil)
	if family == 6 {
		names = ipsets.NewIPVersionConfig(ipsets.IPFamilyV6, rules.IPSetNamePrefix, nil, nil)
	}
	renderer := rules.NewRenderer(rules.Config{
		IPSetConfigV4:               names,
		IPSetConfigV6:               names,
		WorkloadIfacePrefixes:       []string{"cali"},
		IptablesMarkAccept:          markAccept,
		IptablesMarkPass:            markPass,
		IptablesMarkScratch0:        markScratch0,
		IptablesMarkScratch1:        markScratch1,
		IptablesMarkEndpoint:        markEndpoint,
		IptablesMarkNonCaliEndpoint: markForeign,
		// Guards of packets that carry others are not policies.
		AllowVXLANPacketsFromWorkloads: true,
		AllowIPIPPacketsFromWorkloads:  true,
		FailsafeInboundHostPorts:       n.config.FailsafeInboundHostPorts,
		FailsafeOutboundHostPorts:      n.config.FailsafeOutboundHostPorts,
	})
	made := &tables{filter: chains{}, mangle: chains{}, raw: chains{}, sets: map[string]*addresses{}}
	for id, members := range n.sets {
		read, err := readAddresses(members.Slice())
		if err != nil {
			return nil, fmt.Errorf("IP set %s: %w", id, err)
		}
		made.sets[names.NameForMainIPSet(id)] = read
	}
	compiler := &compiler{sets: made.sets}
	for name, policy := range n.policies {
		rendered := renderer.PolicyToIptablesChains(&proto.PolicyID{Tier: tier, Name: name}, policy, family)
		for _, table := range []chains{made.filter, made.mangle, made.raw} {
			compiler.add(table, rendered...)
		}
	}
	for name, profile := range n.profiles {
		inbound, outbound := renderer.ProfileToIptablesChains(&proto.ProfileID{Name: name}, profile, family)
		compiler.add(made.filter, inbound, outbound)
	}
	compiler.add(made.filter, failsafes(renderer.StaticFilterTableChains(family))...)
	compiler.add(made.mangle, failsafes(renderer.StaticMangleTableChains(family))...)
	compiler.add(made.raw, failsafes(renderer.StaticRawTableChains(family))...)
	for id, workload := range n.workloads {
		ingress, egress := groups(workload.Tiers)
		compiler.add(made.filter, renderer.WorkloadEndpointToIptablesChains(id, nil, true, ingress, egress, workload.ProfileIds)...)
	}
	for id, host := range n.hosts {
		ingress, egress := groups(host.Tiers)
		forwardIngress, forwardEgress := groups(host.ForwardTiers)
		compiler.add(made.filter, renderer.HostEndpointToFilterChains(
			id, nil, ingress, egress, forwardIngress, forwardEgress, host.ProfileIds)...)
		ingress, _ = groups(host.PreDnatTiers)
		compiler.add(made.mangle, renderer.HostEndpointToMangleIngressChains(id, ingress)...)
		ingress, egress = groups(host.UntrackedTiers)
		compiler.add(made.raw, renderer.HostEndpointToRawChains(id, ingress, egress)...)
	}
	return made, compiler.err
}

// groups are the policies of an endpoint in each direction.
func groups(tiers []*proto.TierInfo) (ingress, egress []*rules.PolicyGroup) {
	for _, info := range tiers {
		for _, name := range info.IngressPolicies {
			ingress = append(ingress, &rules.PolicyGroup{Tier: tier, Direction: rules.PolicyDirectionInbound, PolicyNames: []string{name}})
		}
		for _, name := range info.EgressPolicies {
			egress = append(egress, &rules.PolicyGroup{Tier: tier, Direction: rules.PolicyDirectionOutbound, PolicyNames: []string{name}})
		}
	}
	return ingress, egress
}

// failsafes are those of the static chains that chains of endpoints call.
func failsafes(all []*iptables.Chain) (found []*iptables.Chain) {
	for _, chain := range all {
		if chain.Name == rules.ChainFailsafeIn || chain.Name == rules.ChainFailsafeOut {
			found = append(found, chain)
		}
	}
	return found
}

// judge finds the chain of the endpoint and asks it.
func (t *tables) judge(asked *probe) (byte, error) {
	chain, table := "", t.filter
	switch asked.Stage + " " + asked.Direction {
	case "workload ingress":
		chain = rules.WorkloadToEndpointPfx
	case "workload egress":
		chain = rules.WorkloadFromEndpointPfx
	case "local ingress":
		chain = rules.HostFromEndpointPfx
	case "local egress":
		chain = rules.HostToEndpointPfx
	case "forward ingress":
		chain = rules.HostFromEndpointForwardPfx
	case "forward egress":
		chain = rules.HostToEndpointForwardPfx
	case "untracked ingress":
		chain, table = rules.HostFromEndpointPfx, t.raw
	case "untracked egress":
		chain, table = rules.HostToEndpointPfx, t.raw
	case "preDNAT ingress":
		chain, table = rules.HostFromEndpointPfx, t.mangle
	default:
		return 0, fmt.Errorf("there is no stage %q with the direction %q", asked.Stage, asked.Direction)
	}
	switch end, mark, err := table.walk(rules.EndpointChainName(chain, asked.Endpoint), &asked.packet); {
	case err != nil:
		return 0, err
	case end == accepted || end == returned && mark&markAccept != 0:
		return 'a', nil
	case end == dropped:
		return 'd', nil
	default:
		return '-', nil
	}
}
