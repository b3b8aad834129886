//! A failure at any step leaves nothing behind, on neither side.

use russet_attach::{
    Attachment, Dialect, Executor, Hooks, Op, PlannedRoute, Refusal, Step, Via, delete_precreated, plan,
    precreate_veth,
};
use russet_linux::sysctl;

use crate::bench::{attachment, interface, namespace, on_a_node, snapshot};

/// Fails the step with this number.
struct FailAt {
    step: usize,
    now: usize,
}

impl Hooks for FailAt {
    fn before(&mut self, step: &Step) -> Result<(), Refusal> {
        self.now += 1;
        if self.now > self.step { Err(format!("injected before {step}").into()) } else { Ok(()) }
    }
}

#[test]
#[ignore = "kernel: root"]
fn a_failure_at_any_step_leaves_nothing_behind() {
    // ARCHITECTURE.md, invariant 2
    on_a_node(|node| {
        let pod = namespace("p");
        pod.with(|| sysctl::write_if_different("net/ipv6/conf/all/disable_ipv6", "1")).unwrap().unwrap();
        for ifname in ["eth0", "net1"] {
            let wanted = interface(Dialect::Native, "c1", ifname, "web-0", &["10.1.0.1", "fd00::1"]);
            let plan = plan(&Attachment { allow_ip_forwarding: true, ..wanted }).unwrap();
            let before = snapshot("p");
            for (step, ahead) in (0..plan.steps.len()).flat_map(|step| [(step, false), (step, true)]) {
                let mut hooks = FailAt { step, now: 0 };
                let precreated =
                    ahead.then(|| precreate_veth(&mut node.socket, &plan, &pod).unwrap().unwrap());
                let mut executor = Executor::new(&mut node.socket).with_precreated(precreated.clone());
                let error = executor.attach_with(&plan, &pod, &mut hooks).unwrap_err();
                precreated
                    .iter()
                    .for_each(|precreated| delete_precreated(&mut node.socket, precreated).unwrap());
                assert_eq!(error.step, plan.steps[step].name());
                assert!(error.undo.is_empty(), "{error}");
                assert_eq!(snapshot("p"), before, "{error}");
            }
        }
    });
}

#[test]
#[ignore = "kernel: root"]
fn a_failure_inside_a_batch_leaves_nothing_behind() {
    on_a_node(|node| {
        let pod = namespace("p");
        let good = plan(&attachment("c1", "web-0", &["10.1.0.1"])).unwrap();
        let lost = Via::Gateway("192.0.2.1".parse().unwrap());
        let bad = Op::Route(PlannedRoute {
            scope: None,
            net: "10.9.0.0/16".parse().unwrap(),
            via: lost,
            metric: None,
            table: 254,
        });
        let before = snapshot("p");
        for (index, step) in good.steps.iter().enumerate() {
            let Step::Batch { ops, .. } = step else { continue };
            for place in 0..=ops.len() {
                let mut plan = good.clone();
                if let Step::Batch { ops, .. } = &mut plan.steps[index] {
                    ops.insert(place, bad);
                }
                let error = Executor::new(&mut node.socket).attach(&plan, &pod).unwrap_err();
                assert!(error.undo.is_empty() && error.to_string().contains("10.9.0.0/16"), "{error}");
                assert_eq!(snapshot("p"), before, "{error}");
            }
        }
    });
}
