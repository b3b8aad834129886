//! `russet netavark`: the driver `russet` of podman's networks, by netavark's plugin API. A request becomes an ADD or DEL of a CNI network, which runs as
//! that of `russet cni --in-process`: through the agent if one runs, and directly otherwise.

mod aardvark;
mod names;
mod translate;
mod wire;

use std::ffi::OsString;
use std::io::{IsTerminal as _, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use russet_addr::{IpNet, NetworkName};
use russet_agent::Paths;
use russet_cni_spec::CniResult;
use russet_model::{Prefix, Resource, ResourceKind};
use russet_runtime::{InProcess, Runtime};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::place::Place;
use super::{FAILED, Failure, runtime as async_runtime};
use crate::cli::netavark::{NetavarkArgs, NetavarkVerb};
use crate::cli::store::StoreChoice;
use crate::in_process::EmbeddedPlugins;
use crate::output;
use aardvark::Aardvark;
use names::Entry;
use translate::Translated;
use wire::{Failed, Info, Network, PluginExec, StatusBlock};

/// The version of netavark's API.
const API_VERSION: &str = "1.0.0";
/// A request has a few kilobytes; the limit is that of CNI configurations.
const STDIN_MAX_BYTES: u64 = 1024 * 1024;
/// Where netavark's port for name servers is, if it is not 53.
const DNS_PORT: &str = "NETAVARK_DNS_PORT";
/// Where results are, below the directory of what a reboot removes. podman tears nothing down that was attached before a reboot, so they must not outlive it: an agent takes an address
/// for one in use as long as a result has it.
const CACHE_DIR: &str = "netavark";
/// No such directory: all plugins of the chain are in this executable, and a foreign `portmap` must not be found.
const PLUGIN_DIR: &str = "/nonexistent";

/// Why a call failed before it did anything.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error(
        "a request of netavark is read from standard input, which is a terminal; docs/netavark.md shows one"
    )]
    Terminal,
    #[error("read the request from standard input: {0}")]
    Read(std::io::Error),
    #[error("the request on standard input has more than {STDIN_MAX_BYTES} bytes")]
    TooLarge,
    #[error("decode the request on standard input: {0}")]
    Decode(serde_json::Error),
    #[error(
        "subnet {subnet} is no enabled pool of Russet; {pools}. `russet apply` makes one, and without --subnet every pool is used"
    )]
    NoPool { subnet: IpNet, pools: String },
}

/// A setup failed, and so did its removal.
#[derive(Debug, thiserror::Error)]
#[error("{error}; what it had made could not be removed: {also}")]
struct NotUndone {
    error: Failure,
    also: Failure,
}

/// The arguments of a call that podman or netavark made: they start a plugin by its whole path, with the words of the API alone, none of which is a verb of
/// this command. The executable's name is that of the driver.
pub fn words(args: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut args = args.into_iter();
    let program = args.next().filter(|program| Path::new(program).is_absolute())?;
    let words: Vec<OsString> = args.collect();
    let texts: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let is_call = match texts.as_slice() {
        ["create" | "info"] => true,
        ["setup" | "teardown", netns] => !netns.starts_with('-'),
        _ => false,
    };
    is_call.then(|| [program, "netavark".into()].into_iter().chain(words).collect())
}

/// Standard output has the answer or an error object, which netavark shows to the user.
pub fn run(args: NetavarkArgs) -> ExitCode {
    match answer(args) {
        Ok(text) => {
            output::print(&text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            output::print(&encoded(&Failed { error: output::error_text(error.as_ref()) }));
            ExitCode::from(FAILED)
        }
    }
}

fn answer(args: NetavarkArgs) -> Result<String, Failure> {
    match args.verb {
        NetavarkVerb::Create => create(args.place),
        NetavarkVerb::Setup { netns } => Ok(encoded(&setup(&request()?, &netns, &args.place.root)?)),
        NetavarkVerb::Teardown { netns } => {
            teardown(&request()?, &netns, &args.place.root).map(|()| String::new())
        }
        NetavarkVerb::Info => {
            Ok(encoded(&Info { version: env!("CARGO_PKG_VERSION"), api_version: API_VERSION }))
        }
    }
}

fn encoded(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}")) + "\n"
}

/// The request on standard input.
fn request<T: DeserializeOwned>() -> Result<T, RequestError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return Err(RequestError::Terminal);
    }
    let mut bytes = Vec::new();
    stdin.lock().take(STDIN_MAX_BYTES + 1).read_to_end(&mut bytes).map_err(RequestError::Read)?;
    if bytes.len() as u64 > STDIN_MAX_BYTES {
        return Err(RequestError::TooLarge);
    }
    serde_json::from_slice(&bytes).map_err(RequestError::Decode)
}

/// The network as it came, but for the IPAM driver.
fn create(place: StoreChoice) -> Result<String, Failure> {
    let document: Map<String, Value> = request()?;
    let network: Network = serde_json::from_value(document.clone().into()).map_err(RequestError::Decode)?;
    translate::check_new(&network)?;
    let subnets: Vec<IpNet> = network.subnets.iter().flatten().map(|subnet| subnet.subnet).collect();
    if !subnets.is_empty() {
        let pools = async_runtime()?.block_on(pools(place))?;
        if let Some(subnet) = subnets.into_iter().find(|subnet| !pools.contains(subnet)) {
            let named: Vec<String> = pools.iter().map(ToString::to_string).collect();
            let pools = match named.as_slice() {
                [] => "there is none yet: an agent makes the default ones".to_owned(),
                named => format!("these are: {}", named.join(", ")),
            };
            return Err(RequestError::NoPool { subnet, pools }.into());
        }
    }
    Ok(encoded(&translate::created(document)))
}

/// The enabled pools of the node's store.
async fn pools(choice: StoreChoice) -> Result<Vec<IpNet>, Failure> {
    let place = Place::open(choice).await?;
    let snapshot = place.store.list(&Prefix::resources(ResourceKind::IpPool)).await?;
    let decode =
        |record: &russet_store::Record| Resource::<russet_model::IpPoolSpec>::decode(&record.value).ok();
    let enabled = snapshot.records.iter().filter_map(decode).filter(|pool| !pool.spec.disabled);
    Ok(enabled.map(|pool| pool.spec.cidr).collect())
}

fn runtime(root: &Path) -> Runtime {
    let mut runtime = Runtime::new(vec![PLUGIN_DIR.into()], Paths::new(root).run_dir().join(CACHE_DIR));
    runtime.in_process = Some(Arc::new(EmbeddedPlugins) as Arc<dyn InProcess>);
    runtime
}

/// netavark removes nothing of a driver whose setup failed, so that is done here, unless the container was attached before.
fn setup(request: &PluginExec, netns: &Path, root: &Path) -> Result<StatusBlock, Failure> {
    let runtime = runtime(root);
    let mut call = translate::setup(request, netns, root, true)?;
    if is_published_elsewhere(&runtime, &call.list.name, &request.container_id) {
        call = translate::setup(request, netns, root, false)?;
    }
    // After a reboot a container has another namespace.
    let cached = runtime.cached(&call.list.name, &call.attachment);
    let was_attached = cached.is_some_and(|entry| entry.attachment.netns == call.attachment.netns);
    let done = runtime.add(&call.list, &call.attachment).map_err(Failure::from).and_then(|result| {
        let dns = enter_names(request, &result, root)?;
        Ok(translate::status(&result, &request.network_options.interface_name, dns)?)
    });
    match done {
        Err(error) if !was_attached => match remove(&runtime, &call, request, root) {
            Ok(()) => Err(error),
            Err(also) => Err(NotUndone { error, also }.into()),
        },
        done => done,
    }
}

/// Whether the container's ports are published at its address in another of Russet's networks: netavark passes them for each network, and a port of the node
/// leads to one address.
fn is_published_elsewhere(runtime: &Runtime, network: &NetworkName, container: &str) -> bool {
    runtime.attachments().iter().any(|entry| {
        entry.network.as_str().starts_with(translate::PREFIX)
            && entry.network != *network
            && entry.attachment.container_id.as_str() == container
            && entry.attachment.capability_args.contains_key("portMappings")
    })
}

/// Enters the container's names where its network has DNS; returns the server's address.
fn enter_names(request: &PluginExec, result: &CniResult, root: &Path) -> Result<Option<IpAddr>, Failure> {
    if !request.network.dns_enabled {
        return Ok(None);
    }
    let without = |why: &str| {
        output::progress(&format!(
            "warning: network {}: no names of containers: {why}",
            request.network.name
        ));
        Ok(None)
    };
    let Some(aardvark) = Aardvark::find(root) else { return without("aardvark-dns is not installed") };
    if std::env::var_os(DNS_PORT).is_some_and(|port| port != "53") {
        return without("dns_bind_port of containers.conf is not 53, which Russet's networks need");
    }
    if request.network.name == aardvark::PID_FILE {
        return without("a file of aardvark-dns has the network's name");
    }
    let addresses: Vec<IpAddr> = result.ips.iter().map(|ip| ip.address.addr()).collect();
    if !addresses.iter().any(IpAddr::is_ipv4) {
        return without("the server has an IPv4 address, and the container has none");
    }
    let aliases = request.network_options.aliases.iter().flatten().map(String::as_str);
    let names = std::iter::once(request.container_name.as_str()).chain(aliases).collect();
    let entry = Entry { container: &request.container_id, addresses: &addresses, names };
    if entry.is_empty() {
        return without("the container has no name");
    }
    let servers = request.network.network_dns_servers.as_deref().unwrap_or_default();
    Ok(Some(aardvark.enter(&request.network.name, servers, &entry)?.into()))
}

fn teardown(request: &PluginExec, netns: &Path, root: &Path) -> Result<(), Failure> {
    // podman passes the path of a namespace that is gone.
    let netns = if netns.exists() { netns.to_owned() } else { PathBuf::new() };
    let call = translate::teardown(request, &netns, root)?;
    remove(&runtime(root), &call, request, root)
}

/// Removes names and attachment. The second part is tried even if the first one failed.
fn remove(runtime: &Runtime, call: &Translated, request: &PluginExec, root: &Path) -> Result<(), Failure> {
    let forgotten = match Aardvark::find(root) {
        Some(aardvark) => aardvark.remove(&request.network.name, &request.container_id),
        None => Ok(()),
    };
    runtime.del(&call.list, &call.attachment)?;
    Ok(forgotten?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn called(args: &[&str]) -> Option<Vec<String>> {
        let found = words(args.iter().map(OsString::from))?;
        Some(found.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn a_call_of_netavark_is_known_by_its_path_and_words() {
        let plugin = "/usr/local/libexec/netavark/russet";
        assert_eq!(called(&[plugin, "create"]).unwrap(), [plugin, "netavark", "create"]);
        let setup = called(&["/opt/drivers/blue", "setup", "/run/netns/c1"]).unwrap();
        assert_eq!(setup[1..], ["netavark", "setup", "/run/netns/c1"]);
        for other in [
            &["russet", "create"][..],
            &[plugin],
            &[plugin, "setup"],
            &[plugin, "create", "-f"],
            &[plugin, "get"],
        ] {
            assert_eq!(called(other), None, "{other:?}");
        }
    }

    #[test]
    fn no_word_of_the_api_is_a_verb_of_the_command() {
        use clap::CommandFactory as _;
        for verb in crate::cli::Cli::command().get_subcommands() {
            assert!(
                !["create", "setup", "teardown", "info"].contains(&verb.get_name()),
                "{}",
                verb.get_name()
            );
        }
    }
}
