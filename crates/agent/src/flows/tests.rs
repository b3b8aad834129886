use russet_verdict::ir::Protocol;

use super::*;

pub(super) fn request(after: u64) -> FlowsRequest {
    FlowsRequest { after, limit: ANSWER_MAX, ..FlowsRequest::default() }
}

fn policy(namespace: Option<&str>, name: &str) -> PolicyName {
    PolicyName { kind: "NetworkPolicy".into(), namespace: namespace.map(str::to_owned), name: name.into() }
}

fn packet(source: &str, port: u16) -> (Flow, Decision) {
    let destination: IpAddr = "10.1.0.9".parse().unwrap();
    let source: IpAddr = source.parse().unwrap();
    let flow =
        Flow { source, destination, protocol: Protocol::TCP, source_port: 4000, destination_port: port };
    let decision = Decision {
        direction: "ingress".into(),
        source: FlowEnd { name: format!("shop/{source}"), address: source },
        destination: FlowEnd { name: "shop/db".into(), address: destination },
        proto: "tcp".into(),
        port: Some(port),
        icmp: None,
        policies: vec![policy(Some("shop"), "db-in"), policy(None, "all")],
        rule: None,
        reason: "no rule matches".into(),
        pending: None,
    };
    (flow, decision)
}

fn add_at(flows: &FlowLog, source: &str, port: u16, now: Instant) -> bool {
    let (flow, decision) = packet(source, port);
    flows.add(false, &flow, decision, now)
}

pub(super) fn add(flows: &FlowLog, source: &str, port: u16) -> bool {
    add_at(flows, source, port, Instant::now())
}

fn ids(report: &FlowsReport) -> Vec<u64> {
    report.flows.iter().map(|flow| flow.id).collect()
}

#[test]
fn packets_of_a_minute_are_one_flow_while_the_same_decides() {
    let (flows, now) = (FlowLog::default(), Instant::now());
    assert!(add_at(&flows, "10.1.0.2", 80, now));
    assert!(!add_at(&flows, "10.1.0.2", 80, now + SAME / 2));
    assert!(add_at(&flows, "10.1.0.2", 81, now));
    assert!(add_at(&flows, "10.1.0.2", 80, now + SAME));
    let (flow, decision) = packet("10.1.0.2", 80);
    let changed = Decision { reason: "another".into(), ..decision.clone() };
    assert!(flows.add(false, &flow, changed, now + SAME));
    assert!(flows.add(true, &flow, decision, now + SAME));
    let report = flows.report(&request(0));
    assert_eq!(ids(&report), [1, 2, 3, 4, 5]);
    assert_eq!(report.flows.iter().map(|flow| flow.packets).collect::<Vec<_>>(), [2, 1, 1, 1, 1]);
    assert_eq!(report.flows[4].verdict, "allowed");
}

#[test]
fn the_last_flows_are_kept_and_a_client_learns_what_it_missed() {
    let flows = FlowLog::default();
    let total = FLOWS_MAX as u64 + 300;
    for number in 0..total {
        let source = format!("10.2.{}.{}", number / 256, number % 256);
        assert!(add(&flows, &source, 80));
    }
    assert_eq!(flows.kept().flows.len(), FLOWS_MAX);
    assert_eq!(flows.kept().index.len(), FLOWS_MAX);
    // One that is not kept any more is a new one.
    assert!(add(&flows, "10.2.0.0", 80));
    let newest = flows.report(&FlowsRequest { limit: 3, ..request(0) });
    assert_eq!((ids(&newest), newest.next, newest.missed), (vec![total - 1, total, total + 1], total + 1, 0));
    let followed = flows.report(&FlowsRequest { limit: 2, ..request(1) });
    assert_eq!((ids(&followed), followed.next, followed.missed), (vec![302, 303], 303, 300));
    let followed = flows.report(&request(followed.next));
    assert_eq!((followed.flows.len(), followed.flows[0].id, followed.missed), (ANSWER_MAX, 304, 0));
    let last = flows.report(&request(total + 1));
    assert_eq!((ids(&last), last.next, last.missed), (vec![], total + 1, 0));
    // The agent was started anew.
    let anew = flows.report(&FlowsRequest { limit: 1, ..request(total + 900) });
    assert_eq!((ids(&anew), anew.missed), (vec![302], 301));
}

#[test]
fn filters_are_by_verdict_end_and_policy() {
    let flows = FlowLog::default();
    add(&flows, "10.1.0.2", 80);
    let (flow, decision) = packet("10.1.0.3", 80);
    let pending = Some(Pending { verdict: DENIED.into(), policies: vec![policy(None, "soon")] });
    flows.add(true, &flow, Decision { policies: Vec::new(), pending, ..decision }, Instant::now());
    let asked = |change: &dyn Fn(&mut FlowsRequest)| {
        let mut request = request(0);
        change(&mut request);
        ids(&flows.report(&request))
    };
    assert_eq!(asked(&|_| {}), [1, 2]);
    assert_eq!(asked(&|it| it.denied = true), [1]);
    for (pod, found) in
        [("shop/db", &[1, 2][..]), ("shop/10.1.0.2", &[1]), ("10.1.0.3", &[2]), ("shop/d", &[]), ("", &[])]
    {
        assert_eq!(asked(&|it| it.pod = Some(pod.to_owned())), found, "{pod}");
    }
    for (policy, found) in [
        ("shop/db-in", &[1][..]),
        ("db-in", &[1]),
        ("all", &[1]),
        ("soon", &[2]),
        ("shop/all", &[]),
        ("other/db-in", &[]),
        ("/", &[]),
    ] {
        assert_eq!(asked(&|it| it.policy = Some(policy.to_owned())), found, "{policy}");
    }
}

#[test]
fn the_largest_answer_is_one_that_a_client_reads() {
    let flows = FlowLog::default();
    let long = "n".repeat(253);
    for port in 0..ANSWER_MAX as u16 + 1 {
        let (flow, decision) = packet("10.1.0.2", port);
        let end = |address| FlowEnd { name: format!("{long}/{long}"), address };
        let (source, destination) = (end(flow.source), end(flow.destination));
        let decision = Decision { source, destination, reason: "r".repeat(300), ..decision };
        flows.add(false, &flow, decision, Instant::now());
    }
    let answer = serde_json::to_vec(&flows.report(&request(0))).unwrap();
    assert!(answer.len() < 1 << 20, "{} bytes", answer.len());
}
