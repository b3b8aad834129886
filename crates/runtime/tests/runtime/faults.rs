//! Every fault of every plugin of a chain of three, in ADD and in DEL, before and after its work:
//! once the fault is removed, one DEL leaves nothing. The steps are counted, so that none is
//! skipped silently.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use russet_cni_spec::{ConfigList, Version};
use russet_runtime::{Attachment, Runtime, RuntimeError};
use russet_testkit::faults::{Fault, Faulty, Step};

use crate::{Lab, attachment, chain};

mod kernel;

/// A chain of three on a machine, and the leftovers there.
struct Machine<'a> {
    lab: &'a Lab,
    list: ConfigList,
    kinds: [&'static str; 3],
    attachment: Attachment,
    /// The deadlines for a plugin that does not hang, and for one that does.
    deadlines: [Duration; 2],
    /// Everything on the machine that belongs to attachments.
    left: &'a dyn Fn() -> Vec<String>,
}

impl Lab {
    /// A plugin that can be made faulty.
    fn faulty(&self, kind: &str, work: &str) -> &Self {
        self.plugin(kind, &Faulty::script(self.dir.path(), kind, work))
    }
}

impl Machine<'_> {
    /// The runtime, with a short deadline for a plugin that hangs.
    fn runtime(&self, fault: Fault) -> Runtime {
        let plugin_deadline = self.deadlines[usize::from(fault == Fault::Hanging)];
        Runtime { plugin_deadline, ..self.lab.runtime.clone() }
    }

    fn plugins(&self) -> Faulty {
        Faulty { kinds: self.kinds, bin: self.lab.path("bin"), dir: self.lab.path("") }
    }

    /// Executes one step, and undoes it.
    fn take(&self, step: Step) {
        let (runtime, list, attachment) = (self.runtime(step.fault), &self.list, &self.attachment);
        assert_eq!((self.left)(), Vec::<String>::new(), "before {step:?}");
        if step.verb == "DEL" {
            self.lab.runtime.add(list, attachment).unwrap();
        }
        self.lab.forget_calls();
        self.plugins().break_it(step, 0);
        let done = match step.verb {
            "ADD" => runtime.add(list, attachment).map(|_| ()),
            _ => runtime.del(list, attachment),
        };
        let error = done.expect_err(&format!("{step:?}"));
        assert!(error.to_string().contains(step.fault.words().unwrap()), "{step:?}: {error}");
        let cached = runtime.attachments().len();
        assert_eq!(
            cached,
            usize::from(step.verb == "DEL"),
            "{step:?}: an entry stays for as long as DEL fails"
        );
        if step.verb == "DEL" {
            self.others_were_called(step);
        }
        if step.fault == Fault::Missing {
            // A second DEL while it is still missing fails again, and has undone the others' work
            // all the same.
            assert!(matches!(runtime.del(list, attachment), Err(RuntimeError::Plugin { .. })), "{step:?}");
            self.others_were_called(step);
        }
        self.plugins().mend_it(step);
        self.lab.runtime.del(list, attachment).unwrap_or_else(|error| panic!("{step:?}: {error}"));
        assert_eq!((self.left)(), Vec::<String>::new(), "after {step:?}");
        self.lab.runtime.del(list, attachment).unwrap_or_else(|error| panic!("{step:?}: twice: {error}"));
    }

    /// In a DEL each existing plugin is called, the last first.
    fn others_were_called(&self, step: Step) {
        let called = self.kinds.iter().enumerate().rev();
        let called = called.filter(|(index, _)| step.fault != Fault::Missing || *index != step.plugin);
        let called: Vec<String> = called.map(|(_, kind)| format!("DEL {kind}")).collect();
        let mut calls = self.lab.calls();
        calls.retain(|call| call.strip_prefix("DEL ").is_some_and(|kind| self.kinds.contains(&kind)));
        assert_eq!(calls, called, "{step:?}");
        self.lab.forget_calls();
    }

    /// Executes every step; returns how many there were.
    fn take_all(&self) -> usize {
        let steps = ["ADD", "DEL"].map(|verb| Step::all(verb, &Fault::OF_PLUGIN)).concat();
        steps.iter().for_each(|step| self.take(*step));
        steps.len()
    }
}

/// Two verbs, three plugins, five faults, of which four may also come when the work is done.
const STEPS: usize = 2 * 3 * (5 + 4);

#[test]
fn one_del_leaves_nothing_after_any_fault_of_a_plugin() {
    // cni-runtime.md section 0 item 12, section 2.2 and appendix A.5; 6.2 items 45 and 46 for the runtime
    let lab = Lab::new();
    let made = lab.path("made");
    fs::create_dir(&made).unwrap();
    let kinds = ["a", "b", "c"];
    for kind in kinds {
        let made = made.join(kind);
        let made = made.display();
        lab.faulty(
            kind,
            &format!("case $CNI_COMMAND in ADD) touch '{made}'; echo '{{}}';; DEL) rm -f '{made}';; esac"),
        );
    }
    let cache = lab.path("cache/results");
    let left = || {
        let names = |dir: &PathBuf| fs::read_dir(dir).into_iter().flatten().map(|it| it.unwrap().file_name());
        names(&made).chain(names(&cache)).map(|name| name.into_string().unwrap()).collect()
    };
    let machine = Machine {
        lab: &lab,
        list: chain(Version::V1_0_0, &kinds),
        kinds,
        attachment: attachment(),
        deadlines: [Duration::from_secs(30), Duration::from_secs(2)],
        left: &left,
    };
    assert_eq!(machine.take_all(), STEPS);
}
