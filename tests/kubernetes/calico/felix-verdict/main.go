// felix-verdict says what Felix would do with packets: a second opinion for tests of Russet's policy decisions.
//
// Each line of standard input is a state (a JSON object, see `state`), each line of standard output the answers to its probes (see `answer`).
// Calico's own code does everything up to the rules of iptables: its validators, the update processors of its syncer, the calculation graph and
// the event sequencer, and the renderer of the rules. What is ours is the interpreter of those rules in interpreter.go, because the kernel's
// would need a namespace with all addresses of the state for each of some hundred states.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/sirupsen/logrus"
)

// maxLine is the longest state in bytes. Those of the tests have some hundred kilobytes.
const maxLine = 64 << 20

// state is what a datastore holds, and what is asked of one node.
type state struct {
	// Node is the name of the node on which Felix runs.
	Node string `json:"node"`
	// Resources are Calico's v3 resources, NetworkPolicies of Kubernetes and EndpointSlices, in the order in which Felix gets them.
	Resources []json.RawMessage `json:"resources"`
	// Probes are the questions.
	Probes []probe `json:"probes"`
}

// probe is the first packet of a flow at one end.
type probe struct {
	// Endpoint is NAMESPACE/POD of a workload, or the name of a host endpoint; it is on the node.
	Endpoint string `json:"endpoint"`
	// Stage is where the packet is judged: workload, local, forward, untracked or preDNAT.
	Stage string `json:"stage"`
	// Direction is ingress or egress, seen from the endpoint.
	Direction string `json:"direction"`
	packet
}

// answer has a letter for each probe: a is allowed, d is denied, and - is left to the next stage.
type answer struct {
	Verdicts string `json:"verdicts"`
	Error    string `json:"error,omitempty"`
}

func main() {
	// Calico's packages log every change of the graph.
	logrus.SetOutput(io.Discard)
	logrus.SetLevel(logrus.PanicLevel)
	if err := answerAll(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "felix-verdict:", err)
		os.Exit(1)
	}
}

func answerAll(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	answers := bufio.NewWriter(out)
	for lines.Scan() {
		var answered answer
		verdicts, err := answerState(lines.Bytes())
		if err != nil {
			answered.Error = err.Error()
		} else {
			answered.Verdicts = verdicts
		}
		line, err := json.Marshal(answered)
		if err != nil {
			return err
		}
		answers.Write(append(line, '\n'))
		// The reader waits for each answer.
		if err := answers.Flush(); err != nil {
			return err
		}
	}
	return lines.Err()
}

// answerState turns a panic, which is how Calico's packages report what they do not expect, into an error of this state.
func answerState(line []byte) (verdicts string, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
		}
	}()
	var asked state
	if err := json.Unmarshal(line, &asked); err != nil {
		return "", fmt.Errorf("read the state: %w", err)
	}
	node, err := calculate(asked.Node, asked.Resources)
	if err != nil {
		return "", err
	}
	tables := map[uint8]*tables{}
	for _, family := range []uint8{4, 6} {
		if tables[family], err = node.render(family); err != nil {
			return "", err
		}
	}
	letters := make([]byte, 0, len(asked.Probes))
	for _, probe := range asked.Probes {
		letter, err := tables[probe.family()].judge(&probe)
		if err != nil {
			return "", fmt.Errorf("probe %+v: %w", probe, err)
		}
		letters = append(letters, letter)
	}
	return string(letters), nil
}
