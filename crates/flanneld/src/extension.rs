//! The backend `extension`: the operator's own commands do what other backends do in the kernel
//! (flannel.md section 6.8). They run without a shell unless the operator enables one, because
//! other nodes wrote part of their input (GHSA-vchx-5pr6-ffx2).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use russet_addr::{Ipv4Net, Ipv6Net};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::process::Command;

/// The commands of a network's configuration; an empty one is not run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extension {
    /// Runs before the lease is acquired; its output becomes the lease's data.
    pub pre_startup: String,
    /// Runs after the lease is acquired.
    pub post_startup: String,
    /// Runs for each subnet of another node that is added or changes.
    pub subnet_add: String,
    /// Runs for each subnet that is removed.
    pub subnet_remove: String,
    /// Whether `sh -c` runs them.
    pub shell: bool,
}

/// What commands get to know of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub subnet: Option<Ipv4Net>,
    pub subnet_v6: Option<Ipv6Net>,
    /// Its address.
    pub public_ip: Ipv4Addr,
    /// Its IPv6 address.
    pub public_ipv6: Option<Ipv6Addr>,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The command has no words.
    #[error("command {0:?} is empty after its variables are replaced")]
    Empty(String),
    /// It could not be started or its output not be read.
    #[error("run {command:?}: {source}")]
    Run {
        /// The configured command.
        command: String,
        source: io::Error,
    },
    /// It ended with a failure.
    #[error("{command:?} ended with {status}: {output}")]
    Failed {
        /// The configured command.
        command: String,
        status: ExitStatus,
        output: String,
    },
    /// It did not end in time.
    #[error("{0:?} did not end within {COMMAND_DEADLINE:?} and was killed")]
    TooSlow(String),
}

/// The variables of the daemon's environment that commands inherit, besides those of flannel.md
/// section 6.8.
const INHERITED: [&str; 6] = ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "NODE_NAME"];
/// The `PATH` of commands when the daemon itself has none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Limit of one command: changes of other subnets wait meanwhile.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);
/// Limit of the output that is kept; a lease's value must fit into a datastore's record.
const OUTPUT_MAX_BYTES: u64 = 64 * 1024;
/// How long the output of a command that ended is still read when a process that it started keeps
/// the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(100);

// === impl Extension ===

impl Extension {
    /// Runs the first command and returns the data for the lease; none without a command.
    pub async fn before_lease(&self) -> Result<Option<String>, CommandError> {
        if self.pre_startup.is_empty() {
            return Ok(None);
        }
        self.run(&self.pre_startup, &BTreeMap::new(), "").await.map(Some)
    }

    /// Runs the second command, with this node's own lease.
    pub async fn after_lease(&self, network: Option<Ipv4Net>, own: &Subject) -> Result<(), CommandError> {
        let mut variables = own.variables();
        variables.insert("NETWORK", network.map(|net| net.to_string()).unwrap_or_default());
        self.run_unless_empty(&self.post_startup, &variables, "").await
    }

    /// Runs the command for an added subnet; `data` is what its node wrote.
    pub async fn added(&self, peer: &Subject, data: &str) -> Result<(), CommandError> {
        self.run_unless_empty(&self.subnet_add, &peer.variables(), data).await
    }

    /// Runs the command for a removed subnet.
    pub async fn removed(&self, peer: &Subject, data: &str) -> Result<(), CommandError> {
        self.run_unless_empty(&self.subnet_remove, &peer.variables(), data).await
    }

    async fn run_unless_empty(
        &self,
        command: &str,
        variables: &BTreeMap<&str, String>,
        input: &str,
    ) -> Result<(), CommandError> {
        if !command.is_empty() {
            let output = self.run(command, variables, input).await?;
            tracing::info!(command, output, "ran a command");
        }
        Ok(())
    }

    /// The command's output, both streams as they arrive, trimmed.
    async fn run(
        &self,
        command: &str,
        variables: &BTreeMap<&str, String>,
        input: &str,
    ) -> Result<String, CommandError> {
        let words = if self.shell {
            ["sh", "-c", command].map(str::to_owned).to_vec()
        } else {
            split(command, &|name| {
                let inherited = || INHERITED.contains(&name).then(|| std::env::var(name).ok()).flatten();
                variables.get(name).cloned().or_else(inherited)
            })
        };
        let (program, arguments) =
            words.split_first().ok_or_else(|| CommandError::Empty(command.to_owned()))?;
        let mut process = Command::new(program);
        // The daemon's environment contains passwords, and the socket of the service manager.
        process.args(arguments).env_clear().envs(inherited()).envs(variables).kill_on_drop(true);
        let finished = tokio::time::timeout(COMMAND_DEADLINE, converse(process, input)).await;
        let (status, output) = finished
            .map_err(|_elapsed| CommandError::TooSlow(command.to_owned()))?
            .map_err(|source| CommandError::Run { command: command.to_owned(), source })?;
        if status.success() {
            return Ok(output);
        }
        Err(CommandError::Failed { command: command.to_owned(), status, output })
    }
}

// === impl Subject ===

impl Subject {
    fn variables(&self) -> BTreeMap<&'static str, String> {
        let mut variables = BTreeMap::from([("PUBLIC_IP", self.public_ip.to_string())]);
        let subnet = self.subnet.map(|net| net.to_string());
        variables.insert("SUBNET", subnet.unwrap_or_else(|| "0.0.0.0/0".to_owned()));
        if let Some(subnet) = self.subnet_v6 {
            variables.insert("IPV6SUBNET", subnet.to_string());
        }
        if let Some(address) = self.public_ipv6 {
            variables.insert("PUBLIC_IPV6", address.to_string());
        }
        variables
    }
}

/// The inherited variables of the daemon's environment.
fn inherited() -> impl Iterator<Item = (&'static str, OsString)> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| PATH.into());
    let others = INHERITED.into_iter().filter(|name| *name != "PATH");
    let others = others.filter_map(|name| Some((name, std::env::var_os(name)?)));
    others.chain([("PATH", path)])
}

/// Passes the process its input and waits for its end. A process that it leaves behind does not
/// delay us: its output is lost.
async fn converse(mut process: Command, input: &str) -> io::Result<(ExitStatus, String)> {
    let (reader, writer) = io::pipe()?;
    let reader = pipe::Receiver::from_owned_fd(reader.into())?;
    process.stdin(Stdio::piped()).stdout(writer.try_clone()?).stderr(writer);
    let mut child = process.spawn()?;
    // The command holds copies of the pipe's writing end, without which reading would not end.
    drop(process);
    let stdin = child.stdin.take();
    let tell = async {
        if let Some(mut stdin) = stdin {
            // A process may end without reading its input.
            let _ = stdin.write_all(format!("{input}\n").as_bytes()).await;
        }
    };
    let mut output = Vec::new();
    let status = {
        let talk = async { tokio::join!(tell, listen(reader, &mut output)) };
        tokio::pin!(talk);
        tokio::select! {
            _ = &mut talk => child.wait().await?,
            status = child.wait() => {
                // Output from before its end is in the pipe already.
                let _ = tokio::time::timeout(LAST_WORDS, &mut talk).await;
                status?
            }
        }
    };
    Ok((status, String::from_utf8_lossy(&output).trim().to_owned()))
}

/// Keeps the beginning, and reads the rest so that no writer blocks.
async fn listen(mut reader: pipe::Receiver, output: &mut Vec<u8>) -> io::Result<()> {
    (&mut reader).take(OUTPUT_MAX_BYTES).read_to_end(output).await?;
    tokio::io::copy(&mut reader, &mut tokio::io::sink()).await.map(drop)
}

/// Splits at blanks and replaces `$NAME` and `${NAME}`; quotes are ordinary characters. A value
/// never adds a word.
fn split(command: &str, look: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    command.split_whitespace().map(|word| expand(word, look)).filter(|word| !word.is_empty()).collect()
}

fn expand(word: &str, look: &dyn Fn(&str) -> Option<String>) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, behind)) = rest.split_once('$') {
        text.push_str(before);
        rest = behind;
        let (name, behind) = match rest.strip_prefix('{').and_then(|braced| braced.split_once('}')) {
            Some((name, behind)) => (name, behind),
            None => rest
                .split_at(rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())),
        };
        if name.is_empty() {
            text.push('$');
        } else {
            text.push_str(&look(name).unwrap_or_default());
            rest = behind;
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Subject {
        Subject {
            subnet: Some("10.5.7.0/24".parse().unwrap()),
            subnet_v6: None,
            public_ip: "10.200.0.12".parse().unwrap(),
            public_ipv6: None,
        }
    }

    /// flannel.md section 6.8.
    #[test]
    fn commands_are_split_at_blanks_and_a_value_never_makes_a_word() {
        let look = |name: &str| match name {
            "SUBNET" => Some("10.5.7.0/24".to_owned()),
            "EVIL" => Some("a b; rm -rf /".to_owned()),
            _ => None,
        };
        let words = |command: &str| split(command, &look);
        assert_eq!(
            words("ip route add $SUBNET via  ${SUBNET}x"),
            ["ip", "route", "add", "10.5.7.0/24", "via", "10.5.7.0/24x"]
        );
        assert_eq!(words("echo '$EVIL' | cat"), ["echo", "'a b; rm -rf /'", "|", "cat"]);
        assert_eq!(words("a $MISSING $ 5$ $$SUBNET ${open"), ["a", "$", "5$", "$10.5.7.0/24", "${open"]);
        assert!(words("  $MISSING ").is_empty());
    }

    /// flannel.md section 6.8.
    #[tokio::test]
    #[ignore = "tool: env, cat and sh, as commands of an operator"]
    async fn commands_get_the_peers_subnet_address_and_data() {
        let directory = tempfile::tempdir().unwrap();
        let printed = directory.path().join("output");
        let extension = Extension {
            pre_startup: "echo  hello ".to_owned(),
            subnet_add: format!("tee {}/$PUBLIC_IP", directory.path().display()),
            subnet_remove: "env SUBNET=$SUBNET true".to_owned(),
            ..Extension::default()
        };
        assert_eq!(extension.before_lease().await.unwrap().unwrap(), "hello");
        extension.added(&peer(), "its data").await.unwrap();
        let written = std::fs::read_to_string(directory.path().join("10.200.0.12")).unwrap();
        assert_eq!(written, "its data\n");
        extension.removed(&peer(), "").await.unwrap();
        let shell = Extension {
            post_startup: format!("echo \"$NETWORK $SUBNET $PUBLIC_IP\" | cat > {}", printed.display()),
            shell: true,
            ..Extension::default()
        };
        shell.after_lease(Some("10.5.0.0/16".parse().unwrap()), &peer()).await.unwrap();
        assert_eq!(std::fs::read_to_string(&printed).unwrap(), "10.5.0.0/16 10.5.7.0/24 10.200.0.12\n");
        assert_eq!(Extension::default().before_lease().await.unwrap(), None);
    }

    #[tokio::test]
    #[ignore = "tool: env, as a command of an operator"]
    async fn a_command_gets_no_password_and_no_service_manager_socket() {
        let secrets = ["NOTIFY_SOCKET", "FLANNELD_ETCD_PASSWORD", "AWS_SECRET_ACCESS_KEY"];
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            let test = "extension::tests::a_command_gets_no_password_and_no_service_manager_socket";
            let mut within_a_service = Command::new(std::env::current_exe().unwrap());
            within_a_service.args(["--exact", test, "--include-ignored"]);
            within_a_service.envs(secrets.map(|name| (name, "opensesame")));
            assert!(within_a_service.stdout(Stdio::null()).status().await.unwrap().success());
            return;
        }
        let words = "env --unset=X given=$FLANNELD_ETCD_PASSWORD".to_owned();
        let extension = Extension { pre_startup: words, ..Extension::default() };
        let printed = extension.before_lease().await.unwrap().unwrap();
        assert!(printed.contains("PATH=") && !printed.contains("opensesame"), "{printed}");
        assert!(secrets.iter().all(|name| !printed.contains(name)), "{printed}");
        let shell = Extension { shell: true, pre_startup: "env".to_owned(), ..Extension::default() };
        let printed = shell.before_lease().await.unwrap().unwrap();
        assert!(printed.contains("PATH=") && !printed.contains("opensesame"), "{printed}");
    }

    #[tokio::test]
    #[ignore = "tool: sh, as a command of an operator"]
    async fn the_error_of_a_failed_command_contains_its_output() {
        let failing = |command: &str, shell| Extension {
            pre_startup: command.to_owned(),
            shell,
            ..Extension::default()
        };
        let error =
            failing("echo out; echo err >&2; exit 3", true).before_lease().await.unwrap_err().to_string();
        assert!(error.contains("exit status: 3") && error.contains("out\nerr"), "{error}");
        let error = failing("/nowhere/command x", false).before_lease().await.unwrap_err().to_string();
        assert!(error.starts_with("run \"/nowhere/command x\": "), "{error}");
        // A child that keeps the output open does not delay us.
        let output = failing("echo early; sleep 3 &", true).before_lease().await.unwrap();
        assert_eq!(output.unwrap(), "early");
    }
}
