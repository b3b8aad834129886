//! `russet ui`: brings the agent's page from its socket to a browser of this machine.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use russet_agent::Paths;
use russet_agent::page::{PREFIX, new_token};
use russet_http::health::LIMITS;
use russet_http::listener::{Admission, Limits};
use russet_http::local::{Gate, Relay};
use russet_http::server::{Requests, serve};
use tokio::net::{TcpListener, UnixStream};

use super::{Failure, runtime, stop_signal};
use crate::cli::ui::UiArgs;
use crate::output;

/// A request of a browser has no body.
const REQUESTS: Requests = Requests { body_max_bytes: 4096, body_timeout: Duration::from_secs(5) };

/// Serves the page until it is interrupted.
pub fn run(args: UiArgs) -> Result<(), Failure> {
    let paths = Paths::new(&args.root);
    if args.agent_url {
        output::print(&agent_url(&paths)?);
        return Ok(());
    }
    runtime()?.block_on(forward(&paths, &args))
}

/// The address at which the agent itself serves the page.
fn agent_url(paths: &Paths) -> Result<String, Failure> {
    let path = paths.ui_url_file();
    std::fs::read_to_string(&path).map_err(|error| {
        let setting =
            "ui_address = \"127.0.0.1:9474\" in /etc/russet/russet.toml, or --ui-address, switches that on";
        format!("the agent serves no page at an address of its own ({}: {error}): {setting}", path.display())
            .into()
    })
}

async fn forward(paths: &Paths, args: &UiArgs) -> Result<(), Failure> {
    let socket = paths.health_socket();
    reach(&socket).await?;
    let token = new_token()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await.map_err(|error| {
        format!("listen at 127.0.0.1:{}: {error}; choose another --port, or leave it out", args.port)
    })?;
    let url = format!("http://{}/{token}/", listener.local_addr()?);
    let stop = stop_signal()?;
    output::print(&format!("{url}\n"));
    if args.open {
        open(&url);
    }
    output::progress("the page is served until this is interrupted; who has the address can read it");
    let gate = Gate::new(&token, PREFIX, Relay::new(socket));
    // Any process of this machine can connect, so the limits are those of the agent's own address.
    let admission = Admission::new(Limits { name: "ui", ..LIMITS });
    serve(listener, admission, REQUESTS, gate, stop).await;
    Ok(())
}

/// Fails if no agent answers there.
async fn reach(socket: &Path) -> Result<(), Failure> {
    match UnixStream::connect(socket).await {
        Ok(_) => Ok(()),
        Err(error) => {
            let remedy = "start the agent (systemctl start russet-agent), run this as root, or give --root";
            Err(format!("no agent answers at {}: {error}; {remedy}", socket.display()).into())
        }
    }
}

/// Starts the desktop's program. Its absence is no failure: the address is printed.
fn open(url: &str) {
    let started = std::process::Command::new("xdg-open")
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = started {
        output::progress(&format!("xdg-open was not started ({error}): open the address yourself"));
    }
}
