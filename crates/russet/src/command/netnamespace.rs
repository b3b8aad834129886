//! `russet netnamespace`: OpenShift's tenants in the store of the node's settings.

mod requested;

use std::net::Ipv4Addr;

use russet_model::openshift::{Namespace, NetNamespace};
use russet_openshift::tenants::{Action, Tenants};
use serde::Serialize;

use super::place::Place;
use super::{Failure, runtime};
use crate::cli::Format;
use crate::cli::netnamespace::{NetNamespaceArgs, NetNamespaceVerb};
use crate::output;

/// All tenants; `schema` grows when a member changes its meaning.
#[derive(Serialize)]
struct List {
    schema: u32,
    netnamespaces: Vec<TenantView>,
}

/// One tenant.
#[derive(Serialize)]
struct One {
    schema: u32,
    #[serde(flatten)]
    shown: TenantView,
}

/// A tenant, and the others with its network ID.
#[derive(Serialize)]
struct TenantView {
    netname: String,
    netid: u32,
    global: bool,
    shared_with: Vec<String>,
    egress_ips: Vec<Ipv4Addr>,
}

pub fn run(args: NetNamespaceArgs) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let (namespace, action, output) = match args.verb {
            NetNamespaceVerb::List { output } => {
                let place = Place::open(args.place).await?;
                return list(&Tenants::new(place.store.clone()), output.format).await;
            }
            NetNamespaceVerb::Show(one) => {
                let place = Place::open(args.place).await?;
                let tenants = Tenants::new(place.store.clone());
                let tenant = tenants.get(&one.namespace).await?;
                return show(&tenants, &tenant, one.output.format).await;
            }
            NetNamespaceVerb::Create(one) => (one.namespace, Action::Create, one.output),
            NetNamespaceVerb::Delete(one) => (one.namespace, Action::Delete, one.output),
            NetNamespaceVerb::Global(one) => (one.namespace, Action::Global, one.output),
            NetNamespaceVerb::Isolate(one) => (one.namespace, Action::Isolate, one.output),
            NetNamespaceVerb::Join { namespace, other, output } => (namespace, Action::Join(other), output),
        };
        act(args.place, &namespace, &action, output.format).await
    })
}

async fn act(
    place: crate::cli::store::StoreChoice,
    namespace: &Namespace,
    action: &Action,
    format: Format,
) -> Result<(), Failure> {
    let place = match action {
        Action::Create => Place::open_or_make(place).await?,
        _ => Place::open(place).await?,
    };
    let tenants = Tenants::new(place.store.clone());
    let tenant = match place.kubernetes() {
        Some(client) => requested::change(&client, &tenants, namespace, action).await?,
        None => tenants.act(namespace, action).await?,
    };
    show(&tenants, &tenant, format).await
}

async fn list(tenants: &Tenants, format: Format) -> Result<(), Failure> {
    let all = tenants.list().await?;
    let netnamespaces: Vec<TenantView> = all.iter().map(|tenant| TenantView::of(tenant, &all)).collect();
    let list = List { schema: 1, netnamespaces };
    output::print_as(format, &list, || table(&list.netnamespaces));
    Ok(())
}

async fn show(tenants: &Tenants, tenant: &NetNamespace, format: Format) -> Result<(), Failure> {
    let one = One { schema: 1, shown: TenantView::of(tenant, &tenants.list().await?) };
    output::print_as(format, &one, || table(std::slice::from_ref(&one.shown)));
    Ok(())
}

fn table(shown: &[TenantView]) -> String {
    let row = |tenant: &TenantView| {
        let others = match (tenant.global, tenant.shared_with.is_empty()) {
            (true, _) => "everybody".to_owned(),
            (false, true) => "-".to_owned(),
            (false, false) => tenant.shared_with.join(","),
        };
        vec![tenant.netname.clone(), tenant.netid.to_string(), others]
    };
    output::table(&["NAME", "NETID", "REACHES"], &shown.iter().map(row).collect::<Vec<_>>())
}

// === impl TenantView ===

impl TenantView {
    fn of(tenant: &NetNamespace, all: &[NetNamespace]) -> Self {
        let shares = |other: &&NetNamespace| other.netid == tenant.netid && other.netname != tenant.netname;
        Self {
            netname: tenant.netname.to_string(),
            netid: tenant.netid.number(),
            global: tenant.netid.is_global(),
            shared_with: all.iter().filter(shares).map(|other| other.netname.to_string()).collect(),
            egress_ips: tenant.egress_ips.clone(),
        }
    }
}
