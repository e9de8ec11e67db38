;; Compiles the node program, and of XTDB what the configurations name, into the directory *compile-path*.
(binding [*compile-files* true]
  (doseq [name '[ctxd-node
                 xtdb.node xtdb.bus xtdb.tx xtdb.query xtdb.cache xtdb.document-store xtdb.mem-kv
                 xtdb.kv.index-store xtdb.kv.document-store xtdb.kv.tx-log
                 xtdb.rocksdb xtdb.jdbc xtdb.jdbc.psql xtdb.kafka]]
    (require name)))
(shutdown-agents)
