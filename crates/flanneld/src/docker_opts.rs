//! `russet flanneld docker-opts`: turns `subnet.env` into options for docker's daemon, as flannel's
//! `mk-docker-opts.sh` does (flannel.md section 7.3). The flags and lines are the same, but
//! `subnet.env` is parsed instead of executed.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use russet_linux::file::{FileError, READABLE, write_atomic_with_mode};

use crate::subnet_env::{self, assignment};

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `-f`: the file that flanneld wrote.
    pub from: PathBuf,
    /// `-d`: the file to write.
    pub to: PathBuf,
    /// `-i`: one line for each option.
    pub single: bool,
    /// `-c`: one line with all of them.
    pub combined: bool,
    /// `-k`: the name of the variable in that line.
    pub combined_key: String,
    /// False with `-m`, which leaves out `--ip-masq`.
    pub ip_masq: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum DockerOptsError {
    /// An invalid command line, or a request for help: usage on standard error, exit code 1, like
    /// the script.
    #[error("{USAGE}")]
    Usage,
    /// `-k` is not a valid name of a variable.
    #[error("-k {0:?} is not a name of a shell variable")]
    Key(String),
    /// `subnet.env` cannot be read.
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// `FLANNEL_IPMASQ` is neither true nor false.
    #[error("Invalid value of FLANNEL_IPMASQ: {0}")]
    Masquerade(String),
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] FileError),
}

const USAGE: &str =
    "russet flanneld docker-opts [-f FLANNEL-ENV-FILE] [-d DOCKER-ENV-FILE] [-i] [-c] [-m] [-k COMBINED-KEY]

Turn flannel's subnet.env into options for docker's daemon
OPTIONS:
    -f  the file that flanneld wrote; /run/flannel/subnet.env by default
    -d  the file to write; /run/docker_opts.env by default
    -i  write each option as a variable, as in DOCKER_OPT_MTU=\"--mtu=1450\"
    -c  write all options as one variable, DOCKER_OPTS
    -k  call that variable so
    -m  leave out --ip-masq, for old dockers";

/// Runs with the arguments after `docker-opts`.
pub fn run(
    words: impl IntoIterator<Item = String>,
    environment: &BTreeMap<String, String>,
) -> Result<(), DockerOptsError> {
    let request = parse(words)?;
    // Like the script, a missing file counts as empty.
    let unread = |source| DockerOptsError::Read { path: request.from.clone(), source };
    let text = subnet_env::text(&request.from).map_err(unread)?;
    let written = render(&request, &text, environment)?;
    Ok(write_atomic_with_mode(&request.to, written.as_bytes(), READABLE)?)
}

/// Parses arguments like `getopts "f:d:icmk:"`: letters may share a dash, and a value may directly
/// follow its letter.
fn parse(words: impl IntoIterator<Item = String>) -> Result<Request, DockerOptsError> {
    let mut request = Request {
        from: "/run/flannel/subnet.env".into(),
        to: "/run/docker_opts.env".into(),
        single: false,
        combined: false,
        combined_key: "DOCKER_OPTS".to_owned(),
        ip_masq: true,
    };
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|letters| !matches!(*letters, "" | "-")) else {
            break;
        };
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            match letter {
                'i' => request.single = true,
                'c' => request.combined = true,
                'm' => request.ip_masq = false,
                'f' | 'd' | 'k' => {
                    let rest = Some(letters.as_str().to_owned()).filter(|rest| !rest.is_empty());
                    let value = rest.or_else(|| words.next()).ok_or(DockerOptsError::Usage)?;
                    letters = "".chars();
                    match letter {
                        'f' => request.from = value.into(),
                        'd' => request.to = value.into(),
                        _ => request.combined_key = value,
                    }
                }
                _ => return Err(DockerOptsError::Usage),
            }
        }
    }
    if !request.single && !request.combined {
        (request.single, request.combined) = (true, true);
    }
    if is_variable(&request.combined_key) {
        Ok(request)
    } else {
        Err(DockerOptsError::Key(request.combined_key))
    }
}

fn is_variable(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

/// The text to write. Like the script, it includes options from environment variables
/// `DOCKER_OPT_...`.
fn render(
    request: &Request,
    subnet_env: &str,
    environment: &BTreeMap<String, String>,
) -> Result<String, DockerOptsError> {
    let mut variables = environment.clone();
    variables
        .extend(subnet_env.lines().filter_map(assignment).map(|(name, value)| (name.into(), value.into())));
    let given = |name: &str| variables.get(name).filter(|value| !value.is_empty()).cloned();
    let mut options: BTreeMap<String, String> = variables
        .iter()
        .filter(|(name, _)| name.starts_with("DOCKER_OPT_"))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let mut option = |name: &str, value: String| options.insert(format!("DOCKER_OPT_{name}"), value);
    if let Some(subnet) = given("FLANNEL_SUBNET") {
        option("BIP", format!("--bip={subnet}"));
    }
    if let Some(mtu) = given("FLANNEL_MTU") {
        option("MTU", format!("--mtu={mtu}"));
    }
    if let Some(masquerade) = given("FLANNEL_IPMASQ").filter(|_| request.ip_masq) {
        // Either flanneld masquerades or docker does, never both.
        let docker = match masquerade.as_str() {
            "true" => false,
            "false" => true,
            _ => return Err(DockerOptsError::Masquerade(masquerade)),
        };
        option("IPMASQ", format!("--ip-masq={docker}"));
    }
    let mut text = String::new();
    let mut all = format!("{} ", given(&request.combined_key).unwrap_or_default());
    for (name, value) in &options {
        if request.single {
            text.push_str(&format!("{name}=\"{value}\"\n"));
        }
        all.push_str(&format!("{value} "));
    }
    if request.combined {
        text.push_str(&format!("{}=\"{all}\"\n", request.combined_key));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENV: &str =
        "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.29.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

    fn rendered(words: &[&str], subnet_env: &str, environment: &[(&str, &str)]) -> Result<String, String> {
        let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let request =
            parse(words.iter().map(|word| (*word).to_owned())).map_err(|error| error.to_string())?;
        render(&request, subnet_env, &environment).map_err(|error| error.to_string())
    }

    /// flannel.md section 7.3; the lines are those of mk-docker-opts.sh on the same file.
    #[test]
    fn the_lines_equal_those_of_the_script() {
        let single = "DOCKER_OPT_BIP=\"--bip=10.5.29.1/24\"\nDOCKER_OPT_IPMASQ=\"--ip-masq=false\"\nDOCKER_OPT_MTU=\"--mtu=1450\"\n";
        let all = "DOCKER_OPTS=\" --bip=10.5.29.1/24 --ip-masq=false --mtu=1450 \"\n";
        assert_eq!(rendered(&[], ENV, &[]).unwrap(), format!("{single}{all}"));
        assert_eq!(rendered(&["-i"], ENV, &[]).unwrap(), single);
        assert_eq!(rendered(&["-c"], ENV, &[]).unwrap(), all);
        assert_eq!(rendered(&["-ic"], ENV, &[]).unwrap(), format!("{single}{all}"));
        assert_eq!(
            rendered(&["-c", "-m", "-k", "NET"], ENV, &[]).unwrap(),
            "NET=\" --bip=10.5.29.1/24 --mtu=1450 \"\n"
        );
        let before = [("DOCKER_OPTS", "--debug"), ("DOCKER_OPT_X", "--x")];
        assert_eq!(
            rendered(&["-cm"], ENV, &before).unwrap(),
            "DOCKER_OPTS=\"--debug --bip=10.5.29.1/24 --mtu=1450 --x \"\n"
        );
        assert_eq!(
            rendered(&["-c"], "FLANNEL_IPMASQ=false\n", &[]).unwrap(),
            "DOCKER_OPTS=\" --ip-masq=true \"\n"
        );
        assert_eq!(rendered(&["-c"], "", &[]).unwrap(), "DOCKER_OPTS=\" \"\n");
    }

    #[test]
    fn invalid_arguments_and_values_are_refused() {
        for words in [&["-x"][..], &["-f"], &["-h"]] {
            assert!(rendered(words, ENV, &[]).unwrap_err().contains("[-k COMBINED-KEY]"), "{words:?}");
        }
        assert!(rendered(&["-k", "A;rm"], ENV, &[]).unwrap_err().contains("not a name"));
        assert_eq!(
            rendered(&[], "FLANNEL_IPMASQ=maybe", &[]).unwrap_err(),
            "Invalid value of FLANNEL_IPMASQ: maybe"
        );
    }

    #[test]
    #[ignore = "tool: bash, to run the few lines of shell that read the file"]
    fn a_shell_reads_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("subnet.env"), directory.path().join("docker"));
        std::fs::write(&from, ENV).unwrap();
        let words = ["-f", from.to_str().unwrap(), "-d", to.to_str().unwrap()].map(str::to_owned);
        run(words, &BTreeMap::new()).unwrap();
        let script = format!(". {}; printf %s \"$DOCKER_OPT_BIP|$DOCKER_OPTS\"", to.display());
        let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text, "--bip=10.5.29.1/24| --bip=10.5.29.1/24 --ip-masq=false --mtu=1450 ");
    }
}
