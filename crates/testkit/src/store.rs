//! Stores that stand between a test's subject and another store.

/// Methods of `russet_store::Store` that pass the call on to another store: inside of an `impl Store for`,
/// `forward_store!(self.inner: claims get)`. For stores that change or count only some of the calls. The caller's crate
/// depends on `russet-store` and `russet-model`.
#[macro_export]
macro_rules! forward_store {
    ($self:ident.$inner:tt: $($method:ident)*) => {
        $($crate::forward_store!(@$method $self.$inner);)*
    };
    (@claims $self:ident.$inner:tt) => {
        fn claims(&$self) -> ::russet_store::Claims {
            $self.$inner.claims()
        }
    };
    (@get $self:ident.$inner:tt) => {
        fn get<'a>(
            &'a $self,
            key: &'a ::russet_model::Key,
        ) -> ::russet_store::BoxFuture<'a, Result<Option<::russet_store::Record>, ::russet_store::StoreError>> {
            $self.$inner.get(key)
        }
    };
    (@list $self:ident.$inner:tt) => {
        fn list<'a>(
            &'a $self,
            prefix: &'a ::russet_model::Prefix,
        ) -> ::russet_store::BoxFuture<'a, Result<::russet_store::Snapshot, ::russet_store::StoreError>> {
            $self.$inner.list(prefix)
        }
    };
    (@commit $self:ident.$inner:tt) => {
        fn commit<'a>(
            &'a $self,
            steps: Vec<::russet_store::Step>,
        ) -> ::russet_store::BoxFuture<'a, Result<Vec<::russet_store::Revision>, ::russet_store::CommitError>> {
            $self.$inner.commit(steps)
        }
    };
    (@watch $self:ident.$inner:tt) => {
        fn watch<'a>(
            &'a $self,
            prefix: &'a ::russet_model::Prefix,
        ) -> ::russet_store::BoxFuture<'a, Result<Box<dyn ::russet_store::Watch>, ::russet_store::StoreError>> {
            $self.$inner.watch(prefix)
        }
    };
}
