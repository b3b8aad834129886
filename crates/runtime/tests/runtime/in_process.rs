//! Plugins that run inside the runtime's process: the behaviour is that of a process.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use russet_cni_spec::{CniError, Outcome, Version};
use russet_runtime::{Call, InProcess};

use crate::{Lab, attachment, chain};

/// Does the work that the plugin's name says, and records its calls.
#[derive(Debug)]
struct EmbeddedPlugins {
    calls: Mutex<Vec<Call>>,
    /// `stuck` waits for this.
    release: Mutex<Receiver<()>>,
    foreign: &'static str,
}

impl InProcess for EmbeddedPlugins {
    fn stands_for(&self, kind: &str, found: Option<&Path>) -> bool {
        kind != self.foreign && found.is_none_or(|path| !path.ends_with("bin/script"))
    }

    fn run(&self, call: Call) -> Outcome {
        self.calls.lock().unwrap().push(call.clone());
        match call.kind.as_str() {
            "stuck" => self
                .release
                .lock()
                .unwrap()
                .recv()
                .map_or_else(|_| Outcome::default(), |()| Outcome::default()),
            "refuses" => Outcome::failure(&CniError::try_again_later("no address", "all taken")),
            "silent" => Outcome { exit_code: 3, ..Outcome::default() },
            kind => {
                let stdout = format!(r#"{{"interfaces":[{{"name":"{kind}"}}]}}"#).into_bytes();
                Outcome { stdout, ..Outcome::default() }
            }
        }
    }
}

/// A runtime with plugins of its own; sending releases `stuck`.
fn lab() -> (Lab, Arc<EmbeddedPlugins>, Sender<()>) {
    let (sender, receiver) = channel();
    let ours = Arc::new(EmbeddedPlugins {
        calls: Mutex::default(),
        release: Mutex::new(receiver),
        foreign: "foreign",
    });
    let mut lab = Lab::new();
    lab.runtime.in_process = Some(Arc::clone(&ours) as Arc<dyn InProcess>);
    (lab, ours, sender)
}

#[test]
fn a_plugin_of_this_program_needs_no_file_and_others_are_executed() {
    // cni-runtime.md section 1.6
    let (lab, ours, _release) = lab();
    lab.adder("script");
    let list = chain(Version::V1_0_0, &["here", "script"]);
    lab.runtime.add(&list, &attachment()).unwrap();
    assert_eq!(lab.calls(), ["ADD script"]);
    assert_eq!(lab.stdin("script", "ADD")["prevResult"]["interfaces"][0]["name"], "here");
    let calls = ours.calls.lock().unwrap().clone();
    let [call] = calls.as_slice() else { panic!("{calls:?}") };
    assert_eq!((call.kind.as_str(), call.var("CNI_COMMAND")), ("here", Some("ADD")));
    assert_eq!((call.var("CNI_IFNAME"), call.var("CNI_CONTAINERID")), (Some("eth0"), Some("c1")));
    let config: serde_json::Value = serde_json::from_slice(&call.stdin).unwrap();
    assert_eq!((&config["name"], &config["type"]), (&"net".into(), &"here".into()));
    let error = lab.runtime.add(&chain(Version::V1_0_0, &["foreign"]), &attachment()).unwrap_err();
    assert!(error.to_string().contains("failed to find plugin \"foreign\""), "{error}");
}

#[test]
fn errors_and_exit_codes_are_handled_as_those_of_a_process() {
    // cni-runtime.md sections 1.9 and 2.2
    let (lab, ..) = lab();
    let message = |kind: &str| lab.message(&chain(Version::V1_0_0, &[kind]));
    assert_eq!(message("refuses"), "plugin type=\"refuses\" failed (add): no address; all taken");
    assert!(message("silent").ends_with("no error message: exit status: 3"), "{}", message("silent"));
}

#[test]
fn del_goes_on_past_a_failure_inside_the_process() {
    let (lab, ours, _release) = lab();
    assert!(lab.runtime.del(&chain(Version::V1_0_0, &["here", "refuses"]), &attachment()).is_err());
    let last = ours.calls.lock().unwrap().last().cloned().unwrap();
    assert_eq!((last.kind.as_str(), last.var("CNI_COMMAND")), ("here", Some("DEL")));
}

#[test]
fn a_hanging_plugin_is_waited_for_until_its_deadline() {
    // cni-runtime.md section 2.2
    let (mut lab, ours, release) = lab();
    lab.runtime.plugin_deadline = Duration::from_millis(20);
    let error = lab.runtime.add(&chain(Version::V1_0_0, &["stuck"]), &attachment()).unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
    assert_eq!(error.to_cni().code, russet_cni_spec::code::TRY_AGAIN_LATER);
    // It is released, and its thread ends: it holds the last other reference.
    release.send(()).unwrap();
    lab.runtime.in_process = None;
    russet_testkit::eventually(Duration::from_secs(30), || Arc::strong_count(&ours) == 1);
}
