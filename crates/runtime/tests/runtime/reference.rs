//! The same runtime over the reference plugins of distributions: they are the oracle for our
//! requests.

use std::fs;
use std::process::{Child, Command, Stdio};

use russet_cni_spec::Version;
use russet_runtime::{Attachment, Runtime};
use russet_testkit::{in_new_netns, run};

use crate::list;

/// The directory of Debian's containernetworking-plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// A process in a network namespace of its own: the container.
struct Container(Child);

impl Container {
    fn start() -> Self {
        let mut command = Command::new("unshare");
        // The line says that the namespace exists; cat then waits until the test has ended.
        command.args(["-n", "sh", "-c", "echo up; exec cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        assert_eq!(line, "up\n");
        Self(child)
    }

    fn netns(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    fn stop(mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

#[test]
#[ignore = "kernel: bridge, veth, network namespaces; tool: /usr/lib/cni/{bridge,host-local}"]
fn the_reference_plugins_understand_us_and_we_them() {
    // cni-runtime.md section 6.2 items 21, 22, 23 and 57
    in_new_netns(|| {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("ipam");
        let runtime = Runtime::new(vec![PLUGINS.into()], dir.path());
        let bridge = format!(
            r#"{{"type":"bridge","bridge":"br-demo","isDefaultGateway":true,"ipam":{{"type":"host-local",
                "dataDir":"{}","ranges":[[{{"subnet":"10.203.0.0/24"}}]]}}}}"#,
            data.display()
        );
        let list = list(Version::V1_0_0, &[&bridge]);
        runtime.validate(&list).unwrap();
        let container = Container::start();
        let attachment = Attachment::new("c1".parse().unwrap(), container.netns(), "eth0".parse().unwrap());
        let result = runtime.add(&list, &attachment).unwrap();
        assert_eq!(result.interfaces.len(), 3, "bridge, host end, eth0");
        assert_eq!(result.interface_of(&result.ips[0]).unwrap().name, "eth0");
        assert_eq!(result.ips[0].address.to_string(), "10.203.0.2/24");
        runtime.check(&list, &attachment).unwrap();
        let pid = container.0.id().to_string();
        assert!(
            run("nsenter", &["-t", &pid, "-n", "ip", "-o", "addr", "show", "eth0"]).contains("10.203.0.2/24")
        );

        let error = runtime.add(&list, &attachment).unwrap_err().to_string();
        assert!(error.starts_with("plugin type=\"bridge\" failed (add): "), "{error}");
        runtime.check(&list, &attachment).unwrap();

        container.stop();
        runtime.del(&list, &attachment).unwrap();
        runtime.del(&list, &attachment).unwrap();
        let left: Vec<_> =
            fs::read_dir(data.join("net")).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("10.")), "{left:?}");
        assert!(runtime.attachments().is_empty());
    });
}
