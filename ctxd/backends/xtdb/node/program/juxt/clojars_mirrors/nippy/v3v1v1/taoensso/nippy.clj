(ns juxt.clojars-mirrors.nippy.v3v1v1.taoensso.nippy
  "The serialisation that xtdb-kafka 1.24.3 asks for by the name it had then: the one that xtdb-core 1.24.5 brings."
  (:require [juxt.clojars.mirrors.nippy.v3v4v2.taoensso.nippy :as nippy]))

(def fast-freeze nippy/fast-freeze)
(def fast-thaw nippy/fast-thaw)
