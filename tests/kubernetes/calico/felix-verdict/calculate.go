package main

import (
	"encoding/json"
	"fmt"

	apiv3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/projectcalico/calico/felix/calc"
	"github.com/projectcalico/calico/felix/config"
	"github.com/projectcalico/calico/felix/proto"
	libapiv3 "github.com/projectcalico/calico/libcalico-go/lib/apis/v3"
	"github.com/projectcalico/calico/libcalico-go/lib/backend/api"
	"github.com/projectcalico/calico/libcalico-go/lib/backend/k8s/conversion"
	"github.com/projectcalico/calico/libcalico-go/lib/backend/model"
	"github.com/projectcalico/calico/libcalico-go/lib/backend/syncersv1/updateprocessors"
	"github.com/projectcalico/calico/libcalico-go/lib/backend/watchersyncer"
	"github.com/projectcalico/calico/libcalico-go/lib/resources"
	"github.com/projectcalico/calico/libcalico-go/lib/set"
	validator "github.com/projectcalico/calico/libcalico-go/lib/validator/v3"
)

// node is what Felix' calculation graph tells the dataplane of a node.
type node struct {
	config    *config.Config
	sets      map[string]set.Set[string]
	policies  map[string]*proto.Policy
	profiles  map[string]*proto.Profile
	workloads map[string]*proto.WorkloadEndpoint
	hosts     map[string]*proto.HostEndpoint
}

// object is a resource that has metadata, as all of Calico's have.
type object interface {
	GetName() string
	GetNamespace() string
}

// kind is how a kind of resource is read, and what the syncer makes of it before Felix sees it; nil for what it passes on as it is.
type kind struct {
	empty     func() object
	processor func() watchersyncer.SyncerUpdateProcessor
}

// kinds are those of libcalico-go/lib/backend/syncersv1/felixsyncer that policies depend on.
var kinds = map[string]kind{
	apiv3.KindGlobalNetworkPolicy: {func() object { return &apiv3.GlobalNetworkPolicy{} }, updateprocessors.NewGlobalNetworkPolicyUpdateProcessor},
	apiv3.KindNetworkPolicy:       {func() object { return &apiv3.NetworkPolicy{} }, updateprocessors.NewNetworkPolicyUpdateProcessor},
	apiv3.KindGlobalNetworkSet:    {func() object { return &apiv3.GlobalNetworkSet{} }, updateprocessors.NewGlobalNetworkSetUpdateProcessor},
	apiv3.KindNetworkSet:          {func() object { return &apiv3.NetworkSet{} }, updateprocessors.NewNetworkSetUpdateProcessor},
	apiv3.KindProfile:             {func() object { return &apiv3.Profile{} }, updateprocessors.NewProfileUpdateProcessor},
	apiv3.KindHostEndpoint:        {func() object { return &apiv3.HostEndpoint{} }, updateprocessors.NewHostEndpointUpdateProcessor},
	libapiv3.KindWorkloadEndpoint: {func() object { return &libapiv3.WorkloadEndpoint{} }, updateprocessors.NewWorkloadEndpointUpdateProcessor},
}

// calculate runs Felix' calculation graph over resources, as they come from a syncer that is then in sync.
func calculate(name string, texts []json.RawMessage) (*node, error) {
	found := &node{
		config:    config.New(),
		sets:      map[string]set.Set[string]{},
		policies:  map[string]*proto.Policy{},
		profiles:  map[string]*proto.Profile{},
		workloads: map[string]*proto.WorkloadEndpoint{},
		hosts:     map[string]*proto.HostEndpoint{},
	}
	found.config.FelixHostname = name
	sequencer := calc.NewEventSequencer(found.config)
	sequencer.Callback = found.onEvent
	graph := calc.NewCalculationGraph(sequencer, found.config, func() {})
	filter := calc.NewValidationFilter(graph, found.config)
	processors := map[string]watchersyncer.SyncerUpdateProcessor{}
	filter.OnStatusUpdated(api.ResyncInProgress)
	// Nothing stores this profile: the client of each datastore adds it.
	stored := []*model.KVPair{resources.DefaultAllowProfile()}
	for index, text := range texts {
		pair, err := read(text)
		if err != nil {
			return nil, fmt.Errorf("resource %d: %w", index, err)
		}
		stored = append(stored, pair)
	}
	for _, pair := range stored {
		pairs := []*model.KVPair{pair}
		kind := pair.Key.(model.ResourceKey).Kind
		if known, ok := kinds[kind]; ok {
			if processors[kind] == nil {
				processors[kind] = known.processor()
			}
			var err error
			if pairs, err = processors[kind].Process(pair); err != nil {
				return nil, fmt.Errorf("process %v: %w", pair.Key, err)
			}
		}
		for _, pair := range pairs {
			if pair.Value != nil {
				filter.OnUpdates([]api.Update{{KVPair: *pair, UpdateType: api.UpdateTypeKVNew}})
			}
		}
	}
	filter.OnStatusUpdated(api.InSync)
	graph.Flush()
	sequencer.Flush()
	return found, nil
}

// read reads a resource. What calicoctl would refuse is an error: Russet's answer to that is its own.
func read(text json.RawMessage) (*model.KVPair, error) {
	var header metav1.TypeMeta
	if err := json.Unmarshal(text, &header); err != nil {
		return nil, err
	}
	switch header.APIVersion {
	case "networking.k8s.io/v1":
		policy := &networking.NetworkPolicy{}
		if err := json.Unmarshal(text, policy); err != nil {
			return nil, err
		}
		return conversion.NewConverter().K8sNetworkPolicyToCalico(policy)
	case "discovery.k8s.io/v1":
		slice := &discovery.EndpointSlice{}
		if err := json.Unmarshal(text, slice); err != nil {
			return nil, err
		}
		return pairOf(model.KindKubernetesEndpointSlice, slice), nil
	}
	known, ok := kinds[header.Kind]
	if !ok {
		return nil, fmt.Errorf("the kind %q of %q is not known", header.Kind, header.APIVersion)
	}
	value := known.empty()
	if err := json.Unmarshal(text, value); err != nil {
		return nil, err
	}
	// A workload endpoint is written by the CNI plugin and not by calicoctl.
	if header.Kind != libapiv3.KindWorkloadEndpoint {
		if err := validator.Validate(value); err != nil {
			return nil, fmt.Errorf("%s %s/%s is refused: %w", header.Kind, value.GetNamespace(), value.GetName(), err)
		}
	}
	return pairOf(header.Kind, value), nil
}

func pairOf(kind string, value object) *model.KVPair {
	key := model.ResourceKey{Kind: kind, Namespace: value.GetNamespace(), Name: value.GetName()}
	return &model.KVPair{Key: key, Value: value, Revision: "1"}
}

// onEvent takes over what the dataplane is told. There is no second state, so that nothing is ever removed.
func (n *node) onEvent(event interface{}) {
	switch event := event.(type) {
	case *proto.IPSetUpdate:
		n.sets[event.Id] = set.FromArray(event.Members)
	case *proto.IPSetDeltaUpdate:
		for _, member := range event.RemovedMembers {
			n.sets[event.Id].Discard(member)
		}
		for _, member := range event.AddedMembers {
			n.sets[event.Id].Add(member)
		}
	case *proto.ActivePolicyUpdate:
		n.policies[event.Id.Name] = event.Policy
	case *proto.ActiveProfileUpdate:
		n.profiles[event.Id.Name] = event.Profile
	case *proto.WorkloadEndpointUpdate:
		n.workloads[event.Id.WorkloadId] = event.Endpoint
	case *proto.HostEndpointUpdate:
		n.hosts[event.Id.EndpointId] = event.Endpoint
	}
}
