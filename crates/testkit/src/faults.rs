//! Faults of the plugins of a chain, one at a time.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a broken test bench fails the test, and names say most of it"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::eventually_some;

/// What is wrong with a plugin.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
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
    /// The agent is killed and not restarted.
    Agentless,
}

/// When the fault happens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Moment {
    /// Before the plugin has done anything.
    Before,
    /// When it has done everything.
    After,
}

/// One plugin's fault in one operation.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// The operation's `CNI_COMMAND`.
    pub verb: &'static str,
    pub plugin: usize,
    pub fault: Fault,
    pub moment: Moment,
}

/// Three plugins that can be made faulty.
#[derive(Debug)]
pub struct Faulty {
    pub kinds: [&'static str; 3],
    /// The plugins' directory.
    pub bin: PathBuf,
    /// The directory of the files in which they read their fault and leave what it has made.
    pub dir: PathBuf,
}

/// A plugin with the fault in the file `fault`, which otherwise does its work.
const SCRIPT: &str = r#"
LAB='@LAB'; KIND=@KIND
work() {
@WORK
}
set -- $(cat "$LAB/fault" 2>/dev/null)
[ "$1 $2" = "$CNI_COMMAND $KIND" ] || { work; exit; }
[ $4 = Before ] || work > "$LAB/out"
case $3 in
Hanging) setsid sleep 600 & echo $! > "$LAB/pid.new"; mv "$LAB/pid.new" "$LAB/pid"; wait;;
Garbage) echo 'panic: oops'; [ $1 = ADD ];;
Two) if [ $1 = ADD ]; then echo '{}{}'; else echo '{"code":11,"msg":"a"}{"code":11,"msg":"b"}'; exit 1; fi;;
Killed) kill -9 $$;;
Agentless) kill -9 $5; if [ $4 = Before ]; then work; else cat "$LAB/out"; fi;;
esac
"#;

// === impl Fault ===

impl Fault {
    /// The faults of a plugin itself.
    pub const OF_PLUGIN: [Self; 5] = [Self::Missing, Self::Hanging, Self::Garbage, Self::Two, Self::Killed];
    /// All: the plugin's and the agent's.
    pub const ALL: [Self; 6] =
        [Self::Missing, Self::Hanging, Self::Garbage, Self::Two, Self::Killed, Self::Agentless];

    /// The expected words of the error; without an agent there is no error: the plugin then works
    /// alone.
    #[must_use]
    pub fn words(self) -> Option<&'static str> {
        match self {
            Self::Missing => Some("failed to find plugin"),
            Self::Hanging => Some("no answer within"),
            Self::Garbage => Some("expected value"),
            Self::Two => Some("trailing characters"),
            Self::Killed => Some("signal: 9"),
            Self::Agentless => None,
        }
    }
}

// === impl Step ===

impl Step {
    /// Each of these faults of each of three plugins in this operation, before and after its work.
    #[must_use]
    pub fn all(verb: &'static str, faults: &[Fault]) -> Vec<Self> {
        let mut steps = Vec::new();
        for plugin in 0..3 {
            for &fault in faults {
                steps.push(Self { verb, plugin, fault, moment: Moment::Before });
                if fault != Fault::Missing {
                    steps.push(Self { verb, plugin, fault, moment: Moment::After });
                }
            }
        }
        steps
    }
}

// === impl Faulty ===

impl Faulty {
    /// A shell script of a plugin that can be made faulty, without the first line. `work` is what it does otherwise.
    #[must_use]
    pub fn script(dir: &Path, kind: &str, work: &str) -> String {
        SCRIPT.replace("@LAB", dir.to_str().unwrap()).replace("@KIND", kind).replace("@WORK", work)
    }

    /// Lasts until `mend_it`. `agent` is the process that may be killed.
    pub fn break_it(&self, step: Step, agent: u32) {
        let Step { verb, plugin, fault, moment } = step;
        let kind = self.kinds[plugin];
        if fault == Fault::Missing {
            fs::rename(self.bin.join(kind), self.dir.join("elsewhere")).unwrap();
        }
        let line = format!("{verb} {kind} {fault:?} {moment:?} {agent}");
        fs::write(self.dir.join("fault"), line).unwrap();
    }

    /// Removes the fault, but starts no agent.
    pub fn mend_it(&self, step: Step) {
        match step.fault {
            Fault::Missing => {
                fs::rename(self.dir.join("elsewhere"), self.bin.join(self.kinds[step.plugin])).unwrap();
            }
            Fault::Hanging => self.end_sleeper(),
            _ => {}
        }
        fs::remove_file(self.dir.join("fault")).unwrap();
    }

    /// It is in a session of its own, so that the runtime cannot find it: the runtime must not wait
    /// for it, and the test ends it.
    fn end_sleeper(&self) {
        let path = self.dir.join("pid");
        let pid = eventually_some(Duration::from_secs(10), || fs::read_to_string(&path).ok());
        Command::new("kill").args(["-9", pid.trim()]).status().unwrap();
        fs::remove_file(path).unwrap();
    }
}
