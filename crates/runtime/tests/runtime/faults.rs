//! Every fault of every plugin of a chain of three, in ADD and in DEL, before and after its work:
//! once the fault is removed, one DEL leaves nothing. The steps are counted, so that none is
//! skipped silently.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use russet_cni_spec::{ConfigList, Verb, Version};
use russet_runtime::{Attachment, Runtime, RuntimeError};
use russet_testkit::eventually_some;

use crate::{Lab, attachment, chain};

mod kernel;

/// What is wrong with a plugin.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// Its executable is not there.
    Missing,
    /// It never ends, nor does its child, which has left its process group and holds its standard
    /// output.
    Hanging,
    /// It prints text that is not JSON.
    Garbage,
    /// It prints two documents.
    Two,
    /// It ends by SIGKILL.
    Killed,
}

/// When the fault happens.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// Before it has done anything.
    Before,
    /// When it has done everything.
    After,
}

/// One plugin's fault in one operation.
#[derive(Debug, Clone, Copy)]
struct Step {
    verb: Verb,
    plugin: usize,
    fault: Fault,
    moment: Moment,
}

/// A chain of three on a machine, and the leftovers there.
struct Machine<'a> {
    lab: &'a Lab,
    list: ConfigList,
    kinds: [&'a str; 3],
    attachment: Attachment,
    /// The deadlines for a plugin that does not hang, and for one that does.
    deadlines: [Duration; 2],
    /// Everything on the machine that belongs to attachments.
    left: &'a dyn Fn() -> Vec<String>,
}

/// A plugin with the fault in the file `fault`, which otherwise does its work. `work` is its work,
/// `twice` its two documents.
const FAULTY: &str = r#"
set -- $(cat "$LAB/fault" 2>/dev/null)
if [ "$1 $2" = "$CNI_COMMAND $KIND" ]; then
    [ $4 = Before ] || work > "$LAB/out"
    case $3 in
    Hanging) setsid sleep 600 & echo $! > "$LAB/pid.new"; mv "$LAB/pid.new" "$LAB/pid"; wait;;
    Garbage) echo 'panic: oops'; [ $1 = ADD ]; exit;;
    Two) if [ $1 = ADD ]; then echo '{}{}'; else echo '{"code":11,"msg":"a"}{"code":11,"msg":"b"}'; exit 1; fi;;
    Killed) kill -9 $$;;
    esac
    exit
fi
work"#;

impl Fault {
    const ALL: [Self; 5] = [Self::Missing, Self::Hanging, Self::Garbage, Self::Two, Self::Killed];

    /// The expected words of the error.
    fn words(self) -> &'static str {
        match self {
            Self::Missing => "failed to find plugin",
            Self::Hanging => "no answer within",
            Self::Garbage => "expected value",
            Self::Two => "trailing characters",
            Self::Killed => "signal: 9",
        }
    }
}

impl Step {
    fn all() -> Vec<Self> {
        let mut steps = Vec::new();
        for verb in [Verb::Add, Verb::Del] {
            for plugin in 0..3 {
                for fault in Fault::ALL {
                    steps.push(Self { verb, plugin, fault, moment: Moment::Before });
                    if fault != Fault::Missing {
                        steps.push(Self { verb, plugin, fault, moment: Moment::After });
                    }
                }
            }
        }
        steps
    }
}

impl Lab {
    /// A plugin that can be made faulty.
    fn faulty(&self, kind: &str, work: &str) -> &Self {
        let lab = self.dir.path().display();
        self.plugin(kind, &format!("LAB='{lab}'; KIND={kind}\nwork() {{\n{work}\n}}\n{FAULTY}"))
    }
}

impl Machine<'_> {
    /// The runtime, with a short deadline for a plugin that hangs.
    fn runtime(&self, fault: Fault) -> Runtime {
        let plugin_deadline = self.deadlines[usize::from(fault == Fault::Hanging)];
        Runtime { plugin_deadline, ..self.lab.runtime.clone() }
    }

    fn binary(&self, step: Step) -> PathBuf {
        self.lab.path("bin").join(self.kinds[step.plugin])
    }

    fn break_it(&self, step: Step) {
        let Step { verb, plugin, fault, moment } = step;
        if fault == Fault::Missing {
            fs::rename(self.binary(step), self.lab.path("elsewhere")).unwrap();
        }
        let line = format!("{verb} {} {fault:?} {moment:?}", self.kinds[plugin]);
        fs::write(self.lab.path("fault"), line).unwrap();
    }

    fn mend_it(&self, step: Step) {
        match step.fault {
            Fault::Missing => fs::rename(self.lab.path("elsewhere"), self.binary(step)).unwrap(),
            Fault::Hanging => self.end_sleeper(),
            _ => {}
        }
        fs::remove_file(self.lab.path("fault")).unwrap();
    }

    /// It is in a session of its own, so that the runtime cannot find it: the runtime must not wait
    /// for it, and the test ends it.
    fn end_sleeper(&self) {
        let path = self.lab.path("pid");
        let pid = eventually_some(Duration::from_secs(10), || fs::read_to_string(&path).ok());
        Command::new("kill").args(["-9", pid.trim()]).status().unwrap();
        fs::remove_file(path).unwrap();
    }

    /// Executes one step, and undoes it.
    fn take(&self, step: Step) {
        let (runtime, list, attachment) = (self.runtime(step.fault), &self.list, &self.attachment);
        assert_eq!((self.left)(), Vec::<String>::new(), "before {step:?}");
        if step.verb == Verb::Del {
            self.lab.runtime.add(list, attachment).unwrap();
        }
        self.lab.forget_calls();
        self.break_it(step);
        let done = match step.verb {
            Verb::Add => runtime.add(list, attachment).map(|_| ()),
            _ => runtime.del(list, attachment),
        };
        let error = done.expect_err(&format!("{step:?}"));
        assert!(error.to_string().contains(step.fault.words()), "{step:?}: {error}");
        let cached = runtime.attachments().len();
        assert_eq!(
            cached,
            usize::from(step.verb == Verb::Del),
            "{step:?}: an entry stays for as long as DEL fails"
        );
        if step.verb == Verb::Del {
            self.others_were_called(step);
        }
        if step.fault == Fault::Missing {
            // A second DEL while it is still missing fails again, and has undone the others' work
            // all the same.
            assert!(matches!(runtime.del(list, attachment), Err(RuntimeError::Plugin { .. })), "{step:?}");
            self.others_were_called(step);
        }
        self.mend_it(step);
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
        let steps = Step::all();
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
