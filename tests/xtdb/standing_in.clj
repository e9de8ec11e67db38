(ns standing-in
  "Stands in for XTDB's own HTTP server before a real XTDB node in memory, where that server cannot be had.

  It keeps to what that server is documented and was observed to do, and above all to its weaknesses: sequences are
  written as transit lists while they are read, so an answer that fails has begun and stays empty; errors say their
  class, their data and no more; no wait ends by itself; transaction functions are taken."
  (:require [clojure.instant :as instant]
            [clojure.string :as string]
            [cognitect.transit :as transit]
            [xtdb.api :as xt]
            [xtdb.codec :as codec])
  (:import [java.io ByteArrayOutputStream OutputStream]
           [java.time Duration]
           [org.eclipse.jetty.http HttpHeader]
           [org.eclipse.jetty.io Content$Sink Content$Source]
           [org.eclipse.jetty.server ConnectionFactory Handler$Abstract HttpConfiguration HttpConnectionFactory Request
            Response Server ServerConnector]
           [org.eclipse.jetty.util.thread QueuedThreadPool]
           [xtdb.api NodeOutOfSyncException]
           [xtdb.codec EDNId Id]))

(def ^:private options
  {:handlers {Id (transit/write-handler "xtdb/oid" str)
              EDNId (transit/write-handler "xtdb/oid" str)
              (Class/forName "[B") (transit/write-handler "xtdb/base64" codec/base64-writer)}})

(defn- kebab [name]
  (keyword (string/lower-case (string/replace name #"(?<=[a-z0-9])([A-Z])" "-$1"))))

(defn- parameters [request]
  (into {} (map (fn [field] [(kebab (.getName field)) (.getValue field)])) (Request/extractQueryParameters request)))

(defn- whole [params key] (some-> (get params key) Long/parseLong))
(defn- instant [params key] (some-> (get params key) instant/read-instant-date))
(defn- truth [params key] (= "true" (get params key)))
(defn- patience [params key] (some-> (whole params key) Duration/ofMillis))
(defn- some-of [values] (not-empty (into {} (filter val) values)))

(defn- db-of [node params]
  (xt/db node {::xt/valid-time (instant params :valid-time)
               ::xt/tx-time (instant params :tx-time)
               ::xt/tx-id (whole params :tx-id)}))

(defn- body-of [request]
  (with-open [in (Content$Source/asInputStream request)]
    (transit/read (transit/reader in :json))))

(defn- entity [node params]
  (let [db (db-of node params)
        eid (:eid params)]
    (if (truth params :history)
      [200 (xt/open-entity-history
            db eid (keyword (:sort-order params))
            {:with-docs? (truth params :with-docs)
             :with-corrections? (truth params :with-corrections)
             :start-valid-time (instant params :start-valid-time)
             :end-valid-time (instant params :end-valid-time)
             :start-tx (some-of {::xt/tx-id (whole params :start-tx-id)})
             :end-tx (some-of {::xt/tx-id (whole params :end-tx-id)})})]
      (if-some [doc (not-empty (xt/entity db eid))]
        [200 doc]
        [404 {:error (str eid " entity not found")}]))))

(defn- known [value missing] (if value [200 value] [404 {:error missing}]))

(defn- handled [node operation params request]
  (when-some [tx-id (whole params :await-tx-id)]
    (xt/await-tx node {::xt/tx-id tx-id} (patience params :await-tx-timeout)))
  (case operation
    "GET status" [200 (xt/status node)]
    "GET entity" (entity node params)
    "GET entity-tx" (known (xt/entity-tx (db-of node params) (:eid params)) (str (:eid params) " entity-tx not found"))
    "POST query" (let [{:keys [query in-args]} (body-of request)]
                   [200 (apply xt/open-q (db-of node params) query in-args)])
    "POST submit-tx" (let [{:keys [tx-ops] ::xt/keys [submit-tx-opts]} (body-of request)]
                       [202 (xt/submit-tx node tx-ops (or submit-tx-opts {}))])
    "GET await-tx" [200 (xt/await-tx node {::xt/tx-id (whole params :tx-id)} (patience params :timeout))]
    "GET sync" [200 {::xt/tx-time (xt/sync node (patience params :timeout))}]
    "GET tx-committed" [200 {:tx-committed? (xt/tx-committed? node {::xt/tx-id (whole params :tx-id)})}]
    "GET latest-completed-tx" (known (xt/latest-completed-tx node) "No latest-completed-tx found.")
    "GET latest-submitted-tx" (known (xt/latest-submitted-tx node) "No latest-submitted-tx found.")
    [404 nil]))

(defn- failed [failure operation]
  (cond
    (and (= "GET tx-committed" operation) (instance? NodeOutOfSyncException failure)) [500 nil]
    (or (instance? xtdb.IllegalArgumentException failure) (instance? NodeOutOfSyncException failure)) [400 (ex-data failure)]
    :else [500 {:type "exception" :class (.getName (class failure))}]))

(defn- write [value ^OutputStream out]
  (let [cursor (when (instance? java.io.Closeable value) value)]
    (try
      (transit/write (transit/writer out :json options) (if cursor (or (iterator-seq cursor) '()) value))
      (finally (some-> cursor .close)))))

(defn- answer [node request ^Response response]
  (let [path (Request/getPathInContext request)
        operation (str (.getMethod request) " " (subs path (min (count path) 7)))
        [status value] (try
                         (handled node operation (parameters request) request)
                         (catch Throwable failure (failed failure operation)))]
    (.setStatus response (int status))
    (with-open [out (Content$Sink/asOutputStream response)]
      (when (some? value)
        (.put (.getHeaders response) HttpHeader/CONTENT_TYPE "application/transit+json;charset=utf-8")
        ;; It streams; what fails on the way leaves an answer that has begun.
        (try
          (write value out)
          (catch Throwable _))))))

(defn- handler [node]
  (proxy [Handler$Abstract] []
    (handle [request response callback]
      (try
        (answer node request response)
        (.succeeded callback)
        (catch Throwable failure (.failed callback failure)))
      true)))

(defn -main [header-bytes]
  (let [node (xt/start-node {:xtdb/query-engine {:fn-allow-list []}})
        server (Server. (QueuedThreadPool. 50))
        http (HttpConnectionFactory. (doto (HttpConfiguration.) (.setRequestHeaderSize (Integer/parseInt header-bytes))))
        connector (doto (ServerConnector. server (into-array ConnectionFactory [http])) (.setHost "127.0.0.1"))]
    (.addConnector server connector)
    (.setHandler server (handler node))
    (.start server)
    (binding [*out* *err*] (println (str "serving http://127.0.0.1:" (.getLocalPort connector))) (flush))
    (println "ready ")
    (flush)
    (.join server)))
