package main

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/projectcalico/calico/felix/iptables"
)

// This file is ours: what the kernel does with the rules that Felix renders, for the first packet of a flow.
// Matches and actions that it does not know are errors, so that a later release cannot be misread.

// packet is the first packet of a flow, as it is where it is judged.
type packet struct {
	Source      netip.Addr `json:"source"`
	Destination netip.Addr `json:"destination"`
	// Protocol is its number.
	Protocol uint8 `json:"protocol"`
	// SourcePort is 0 for protocols without ports.
	SourcePort uint16 `json:"sourcePort"`
	// DestinationPort is type * 256 + code for ICMP, and 0 for other protocols without ports.
	DestinationPort uint16 `json:"destinationPort"`
}

// match is a test of a packet and its mark.
type match func(packet *packet, mark uint32) bool

// rule is a rule of iptables: all matches, then the action.
type rule struct {
	matches []match
	action  iptables.Action
}

// chains are those of one table by their names.
type chains map[string][]rule

// end is how a walk through a chain ends.
type end int

const (
	returned end = iota
	accepted
	dropped
)

// addresses are the members of an IP set.
type addresses struct {
	nets  []netip.Prefix
	ports map[member]bool
}

type member struct {
	address  netip.Addr
	protocol uint8
	port     uint16
}

// The protocols by the names that Felix uses.
var protocols = map[string]uint8{"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "ipv6-icmp": 58, "sctp": 132, "udplite": 136}

const (
	protocolICMP   = 1
	protocolICMPv6 = 58
)

// maxDepth is more than the chains that Felix nests: an endpoint's, a policy's.
const maxDepth = 8

func (p *packet) family() uint8 {
	if p.Source.Is4() {
		return 4
	}
	return 6
}

// walk goes through a chain and those that it calls.
func (c chains) walk(name string, packet *packet) (end, uint32, error) {
	mark := uint32(0)
	end, err := c.step(name, packet, &mark, 0)
	return end, mark, err
}

func (c chains) step(name string, packet *packet, mark *uint32, depth int) (end, error) {
	rules, ok := c[name]
	if !ok || depth > maxDepth {
		return returned, fmt.Errorf("there is no chain %s at depth %d", name, depth)
	}
next:
	for _, rule := range rules {
		for _, matches := range rule.matches {
			if !matches(packet, *mark) {
				continue next
			}
		}
		switch action := rule.action.(type) {
		case nil, iptables.LogAction, iptables.NoTrackAction:
		case iptables.AcceptAction:
			return accepted, nil
		case iptables.DropAction:
			return dropped, nil
		case iptables.ReturnAction:
			return returned, nil
		case iptables.SetMarkAction:
			*mark |= action.Mark
		case iptables.ClearMarkAction:
			*mark &^= action.Mark
		case iptables.SetMaskedMarkAction:
			*mark = *mark&^action.Mask | action.Mark
		case iptables.JumpAction:
			if end, err := c.step(action.Target, packet, mark, depth+1); err != nil || end != returned {
				return end, err
			}
		default:
			return returned, fmt.Errorf("chain %s: the action %s is not known", name, action)
		}
	}
	return returned, nil
}

// compiler reads the matches of rules; the first error stays.
type compiler struct {
	sets map[string]*addresses
	err  error
}

func (c *compiler) add(to chains, rendered ...*iptables.Chain) {
	for _, chain := range rendered {
		compiled := make([]rule, 0, len(chain.Rules))
		for _, from := range chain.Rules {
			matches, err := c.read(from.Match)
			if err != nil && c.err == nil {
				c.err = fmt.Errorf("chain %s: %w", chain.Name, err)
			}
			compiled = append(compiled, rule{matches, from.Action})
		}
		to[chain.Name] = compiled
	}
}

// read reads the criteria of a rule. The kernel's modules of ports and of ICMP refuse a rule without the protocol that they are for.
func (c *compiler) read(criteria iptables.MatchCriteria) ([]match, error) {
	var found []match
	protocol := ""
	for _, text := range criteria {
		words := strings.Fields(text)
		if words[0] == "-p" {
			protocol = words[1]
		}
		for _, module := range []string{"multiport", "icmp", "icmp6"} {
			if len(words) > 1 && words[0] == "-m" && words[1] == module && protocol == "" {
				return nil, fmt.Errorf("the kernel refuses the match %q without a protocol", text)
			}
		}
		read, err := c.criterion(words)
		if err != nil {
			return nil, fmt.Errorf("the match %q: %w", text, err)
		}
		found = append(found, read)
	}
	return found, nil
}

// criterion reads one criterion, `[-m MODULE] [!] --OPTION VALUE [MORE]`.
func (c *compiler) criterion(words []string) (match, error) {
	if len(words) > 2 && words[0] == "-m" {
		words = words[2:]
	}
	negated := words[0] == "!"
	if negated {
		words = words[1:]
	}
	if len(words) < 2 {
		return nil, fmt.Errorf("an option with a value is wanted")
	}
	read, err := c.option(words[0], words[1], words[2:])
	if err != nil || !negated {
		return read, err
	}
	// A module of ICMP sees packets of ICMP only, also when it is negated; -p beside it says so.
	return func(packet *packet, mark uint32) bool { return !read(packet, mark) }, nil
}

func (c *compiler) option(name, value string, more []string) (match, error) {
	switch name {
	case "-p":
		return ofProtocol(value)
	case "--source", "--destination":
		return ofNet(value, name == "--source")
	case "--source-ports", "--destination-ports":
		return ofPorts(value, name == "--source-ports")
	case "--icmp-type":
		return ofICMP(value, protocolICMP)
	case "--icmpv6-type":
		return ofICMP(value, protocolICMPv6)
	case "--mark":
		return ofMark(value)
	case "--ctstate":
		return ofState(value)
	case "--match-set":
		return c.ofSet(value, more)
	}
	return nil, fmt.Errorf("the option is not known")
}

func ofProtocol(name string) (match, error) {
	wanted, ok := protocols[strings.ToLower(name)]
	if !ok {
		number, err := strconv.ParseUint(name, 10, 8)
		if err != nil {
			return nil, fmt.Errorf("the protocol is not known")
		}
		wanted = uint8(number)
	}
	return func(packet *packet, _ uint32) bool { return packet.Protocol == wanted }, nil
}

func ofNet(text string, ofSource bool) (match, error) {
	net, err := readNet(text)
	if err != nil {
		return nil, err
	}
	return func(packet *packet, _ uint32) bool {
		if ofSource {
			return net.Contains(packet.Source)
		}
		return net.Contains(packet.Destination)
	}, nil
}

func ofPorts(list string, ofSource bool) (match, error) {
	type ports struct{ first, last uint64 }
	var all []ports
	for _, text := range strings.Split(list, ",") {
		first, last, isRange := strings.Cut(text, ":")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("the ports cannot be read")
		}
		all = append(all, ports{from, to})
	}
	return func(packet *packet, _ uint32) bool {
		port := uint64(packet.DestinationPort)
		if ofSource {
			port = uint64(packet.SourcePort)
		}
		for _, ports := range all {
			if ports.first <= port && port <= ports.last {
				return true
			}
		}
		return false
	}, nil
}

func ofICMP(text string, protocol uint8) (match, error) {
	kind, code, hasCode := strings.Cut(text, "/")
	wantedKind, err := strconv.ParseUint(kind, 10, 8)
	if err != nil {
		return nil, err
	}
	wantedCode := uint64(0)
	if hasCode {
		if wantedCode, err = strconv.ParseUint(code, 10, 8); err != nil {
			return nil, err
		}
	}
	return func(packet *packet, _ uint32) bool {
		sameKind := uint64(packet.DestinationPort>>8) == wantedKind
		sameCode := !hasCode || uint64(packet.DestinationPort&0xff) == wantedCode
		return packet.Protocol == protocol && sameKind && sameCode
	}, nil
}

func ofMark(text string) (match, error) {
	value, mask, _ := strings.Cut(text, "/")
	wanted, err1 := strconv.ParseUint(value, 0, 32)
	masked, err2 := strconv.ParseUint(mask, 0, 32)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("the mark cannot be read")
	}
	return func(_ *packet, mark uint32) bool { return mark&uint32(masked) == uint32(wanted) }, nil
}

// ofState knows that the packet is the first one of its flow.
func ofState(states string) (match, error) {
	if states != "RELATED,ESTABLISHED" && states != "INVALID" {
		return nil, fmt.Errorf("the state is not known")
	}
	return func(*packet, uint32) bool { return false }, nil
}

func (c *compiler) ofSet(name string, more []string) (match, error) {
	set, ok := c.sets[name]
	if !ok || len(more) != 1 {
		return nil, fmt.Errorf("there is no such IP set")
	}
	switch more[0] {
	case "src":
		return func(packet *packet, _ uint32) bool { return set.has(packet.Source) }, nil
	case "dst":
		return func(packet *packet, _ uint32) bool { return set.has(packet.Destination) }, nil
	case "src,src":
		return func(packet *packet, _ uint32) bool {
			return set.ports[member{packet.Source, packet.Protocol, packet.SourcePort}]
		}, nil
	case "dst,dst":
		return func(packet *packet, _ uint32) bool {
			return set.ports[member{packet.Destination, packet.Protocol, packet.DestinationPort}]
		}, nil
	}
	return nil, fmt.Errorf("the direction is not known")
}

func (a *addresses) has(address netip.Addr) bool {
	for _, net := range a.nets {
		if net.Contains(address) {
			return true
		}
	}
	return false
}

// readAddresses reads members of IP sets as Felix writes them: ADDRESS, NET, or ADDRESS,PROTOCOL:PORT.
func readAddresses(members []string) (*addresses, error) {
	read := &addresses{ports: map[member]bool{}}
	for _, text := range members {
		address, port, hasPort := strings.Cut(text, ",")
		net, err := readNet(address)
		if err != nil {
			return nil, err
		}
		if !hasPort {
			read.nets = append(read.nets, net)
			continue
		}
		protocol, number, _ := strings.Cut(port, ":")
		wanted, ok := protocols[protocol]
		parsed, err := strconv.ParseUint(number, 10, 16)
		if !ok || err != nil {
			return nil, fmt.Errorf("the member %q cannot be read", text)
		}
		read.ports[member{net.Addr(), wanted, uint16(parsed)}] = true
	}
	return read, nil
}

func readNet(text string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	return address.Prefix(address.BitLen())
}
