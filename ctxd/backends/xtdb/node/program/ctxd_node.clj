(ns ctxd-node
  "An XTDB 1.x node in a process of its own, answering XTDB's HTTP protocol in transit+json on a Unix socket.

  Beyond the protocol it promises: every wait and every query ends within a bound, every failure says its class, its
  message and the operation it belongs to, no answer is begun before it is complete, and nothing that a client sends is
  run as code."
  (:require [clojure.edn :as edn]
            [clojure.instant :as instant]
            [clojure.java.io :as io]
            [clojure.string :as string]
            [clojure.tools.logging :as log]
            [cognitect.transit :as transit]
            [xtdb.api :as xt]
            [xtdb.codec :as codec]
            [xtdb.db :as db]
            [xtdb.error :as err])
  (:import [java.io ByteArrayInputStream ByteArrayOutputStream File InputStream]
           [java.net StandardProtocolFamily UnixDomainSocketAddress]
           [java.nio ByteBuffer]
           [java.nio.channels FileChannel SocketChannel]
           [java.nio.file Files LinkOption OpenOption Path StandardOpenOption]
           [java.nio.file.attribute PosixFilePermissions]
           [java.time Duration]
           [java.util Date LinkedHashMap Map$Entry]
           [java.util.concurrent ArrayBlockingQueue ExecutionException Future RejectedExecutionException Semaphore
            ThreadPoolExecutor TimeUnit TimeoutException]
           [org.eclipse.jetty.http HttpField HttpFields$Mutable HttpHeader]
           [org.eclipse.jetty.io Content$Source]
           [org.eclipse.jetty.server ConnectionFactory Handler$Abstract HttpConfiguration HttpConnectionFactory Request
            Request$Handler Response Server ServerConnector]
           [org.eclipse.jetty.server.handler ErrorHandler]
           [org.eclipse.jetty.unixdomain.server UnixDomainServerConnector]
           [org.eclipse.jetty.util Callback Fields]
           [org.eclipse.jetty.util.thread QueuedThreadPool]
           [xtdb.api NodeOutOfSyncException]
           [xtdb.cache ICache]
           [xtdb.codec EDNId Id])
  (:gen-class))

(set! *warn-on-reflection* true)

(def ^:private media-type "application/transit+json")
(def ^:private batch
  "Documents that a query or a history takes from their store at a time: of 1 MiB each, and for several requests."
  16)

(def ^:private defaults
  {:max-body-bytes (* 64 1024 1024)
   :max-depth 150
   :max-header-bytes (* 64 1024)
   :await-ms 10000
   :max-await-ms 60000
   :max-awaits 64
   :query-ms 30000
   :query-threads 8
   :queued-queries 64
   :max-rows 1000000
   ;; An answer takes its size several times over while it is written, and several queries run at a time.
   :max-rows-bytes (quot (.maxMemory (Runtime/getRuntime)) 64)
   :first-sync-ms 10000
   :threads 128})

;; Transit

(def ^:private write-options
  {:handlers {Id (transit/write-handler "xtdb/oid" str)
              EDNId (transit/write-handler "xtdb/oid" str)
              (Class/forName "[B") (transit/write-handler "xtdb/base64" codec/base64-writer)}
   :default-handler (transit/write-handler "s" str str)})

(defn- ->transit ^bytes [value]
  (let [out (ByteArrayOutputStream. 512)]
    (transit/write (transit/writer out :json write-options) value)
    (.toByteArray out)))

(defn- transit-> [^bytes body]
  (try
    (transit/read (transit/reader (ByteArrayInputStream. body) :json))
    (catch Throwable failure
      (throw (err/illegal-arg :malformed-body
                              {::err/message (str "Malformed \"" media-type "\" request: " (.getMessage failure))})))))

;; What a request says

(defn- refused [status key message]
  (ex-info message {::status status ::err/error-type :illegal-argument ::err/error-key key ::err/message message}))

(defn- discard
  "Read on without keeping it: a client that is still sending would not see the answer, but a connection that broke."
  [^InputStream in most]
  (let [scratch (byte-array 65536)]
    (loop [left (long most)]
      (let [got (if (pos? left) (.read in scratch) -1)]
        (when-not (neg? got)
          (recur (- left got)))))))

(defn- body-of ^bytes [^Request request limit]
  (let [content-type (some-> (.get (.getHeaders request) HttpHeader/CONTENT_TYPE) (string/split #";") first string/trim)]
    (when-not (= media-type content-type)
      (throw (refused 415 :content-type (str "the body has to be " media-type ", not " (or content-type "untyped"))))))
  (with-open [^InputStream in (Content$Source/asInputStream request)]
    (let [body (if (> (.getLength request) (long limit)) nil (.readNBytes in (inc (int limit))))]
      (when (or (nil? body) (> (alength ^bytes body) (long limit)))
        (discard in (* 4 (long limit)))
        (throw (refused 413 :body-too-large (str "the body has more bytes than the limit of " limit))))
      body)))

(defn- kebab [name]
  (string/lower-case (string/replace name #"(?<=[a-z0-9])([A-Z])" "-$1")))

(defn- parameters [^Request request]
  (into {} (map (fn [^org.eclipse.jetty.util.Fields$Field field] [(keyword (kebab (.getName field))) (.getValue field)]))
        ^Fields (Request/extractQueryParameters request)))

(defn- parsed [params key parse kind]
  (when-some [text (get params key)]
    (try
      (parse text)
      (catch Exception _
        (throw (err/illegal-arg :invalid-parameter {::err/message (str (name key) " is no " kind ": " (pr-str text))}))))))

(defn- whole [params key] (parsed params key #(Long/parseLong %) "whole number"))
(defn- instant [params key] (parsed params key instant/read-instant-date "time"))
(defn- truth [params key] (parsed params key #(case % "true" true "false" false) "true or false"))

(defn- required [params key value]
  (if (some? value)
    value
    (throw (err/illegal-arg (keyword (str "missing-" (name key))) {::err/message (str "missing " (name key))}))))

(defn- entity-id [params]
  (let [id (or (some-> (:eid-edn params) (as-> text (parsed params :eid-edn codec/read-edn-string-with-readers "EDN")))
               (:eid params))]
    (required params :eid id)))

(defn- shown [eid]
  (let [text (str eid)] (if (> (count text) 200) (str (subs text 0 200) "…") text)))

(defn- bounded ^Duration [{:keys [await-ms max-await-ms]} asked]
  (when (and asked (neg? (long asked)))
    (throw (err/illegal-arg :invalid-parameter {::err/message "a timeout is not negative"})))
  (Duration/ofMillis (min (long (or asked await-ms)) (long max-await-ms))))

(defn- basis [params]
  (let [tx (into {} (filter val) {::xt/tx-id (whole params :tx-id) ::xt/tx-time (instant params :tx-time)})]
    (cond-> {}
      (:valid-time params) (assoc ::xt/valid-time (instant params :valid-time))
      (seq tx) (assoc ::xt/tx tx))))

;; Waiting

(defn- waiting
  "Call `wait` as one of the few that may wait at a time, so that waits cannot take every thread."
  [{:keys [^Semaphore awaits]} wait]
  (if-not (.tryAcquire awaits)
    (throw (ex-info "too many waits at a time" {::status 503 ::err/error-key :too-many-waits}))
    (try
      (wait)
      (finally (.release awaits)))))

(defn- await-before
  "Wait for what the side parameters of any operation name."
  [{:keys [node limits] :as service} params]
  (let [timeout (bounded limits (whole params :await-tx-timeout))]
    (when-some [tx-id (whole params :await-tx-id)]
      (waiting service #(xt/await-tx node {::xt/tx-id tx-id} timeout)))
    (when-some [tx-time (and (not= :await-tx-time (::operation params)) (instant params :await-tx-time))]
      (waiting service #(xt/await-tx-time node tx-time timeout)))))

;; Operations: each answers [status value]

(defn- status [{:keys [node about]} _ _]
  [200 (merge (xt/status node) about)])

(defn- runs-code? [op]
  (and (sequential? op)
       (or (= :xtdb.api/fn (first op))
           (some #(and (map? %) (or (contains? % :xt/fn) (contains? % :crux.db/fn))) (rest op)))))

(defn- deeper?
  "Whether `value` holds more than `most` levels. What is read back at some 500 ends the thread that indexes, for good."
  [value most]
  (cond
    (map? value) (or (zero? most) (some (fn [[k v]] (or (deeper? k (dec most)) (deeper? v (dec most)))) value))
    (coll? value) (or (zero? most) (some #(deeper? % (dec most)) value))
    :else false))

(defn- submit [{:keys [node limits]} _ request]
  (let [body (transit-> (body-of request (:max-body-bytes limits)))
        ops (:tx-ops body)]
    (when-not (vector? ops)
      (throw (err/illegal-arg :missing-tx-ops {::err/message "the body has no vector tx-ops"})))
    (when (deeper? ops (:max-depth limits))
      (throw (err/illegal-arg :too-deep {::err/message (str "an operation has more than " (:max-depth limits) " levels")})))
    (when-let [op (first (filter runs-code? ops))]
      (throw (err/illegal-arg :transaction-function {::err/message "transaction functions are off" :op op})))
    [202 (xt/submit-tx node ops (or (::xt/submit-tx-opts body) {}))]))

(defn- await-tx [{:keys [node limits] :as service} params _]
  (let [tx-id (required params :tx-id (whole params :tx-id))
        timeout (bounded limits (whole params :timeout))]
    [200 (waiting service #(xt/await-tx node {::xt/tx-id tx-id} timeout))]))

(defn- await-tx-time [{:keys [node limits] :as service} params _]
  (let [tx-time (required params :tx-time (instant params :tx-time))
        timeout (bounded limits (whole params :timeout))]
    [200 {::xt/tx-time (waiting service #(xt/await-tx-time node tx-time timeout))}]))

(defn- synced [{:keys [node limits] :as service} params _]
  (let [timeout (bounded limits (whole params :timeout))]
    [200 {::xt/tx-time (waiting service #(xt/sync node timeout))}]))

(defn- committed [{:keys [node]} params _]
  (let [tx-id (required params :tx-id (whole params :tx-id))]
    [200 {:tx-committed? (xt/tx-committed? node {::xt/tx-id tx-id})}]))

(defn- weight
  "About the bytes of the heap that `value` takes, rather too many than too few."
  ^long [value]
  (cond
    (string? value) (+ 56 (* 2 (.length ^String value)))
    (map? value) (long (reduce-kv (fn [sum k v] (+ (long sum) 64 (weight k) (weight v))) 64 value))
    (coll? value) (long (reduce (fn [sum v] (+ (long sum) 16 (weight v))) 64 value))
    :else 24))

(defn- fits-within
  "A predicate, true of each row that still fits `most` bytes with the rows before it. One row fits whatever its size."
  [most]
  (let [total (long-array 1)]
    (fn [row]
      (let [bytes (weight row)
            sum (aset total 0 (+ (aget total 0) bytes))]
        (or (<= sum (long most)) (= sum bytes))))))

(defn- too-many-bytes [most]
  (err/illegal-arg :too-many-bytes
                   {::err/message (str "more than " most " bytes of rows: ask for fewer at a time")}))

(defn- require-fitting
  "A transducer that refuses rows of more than `most` bytes."
  [most]
  (let [fits? (fits-within most)]
    (map (fn [row]
           (when-not (fits? row) (throw (too-many-bytes most)))
           row))))

(defn- history-options [params]
  (let [tx #(not-empty (into {} (filter val) {::xt/tx-id (whole params %1) ::xt/tx-time (instant params %2)}))]
    {:with-corrections? (boolean (truth params :with-corrections))
     :start-valid-time (instant params :start-valid-time)
     :end-valid-time (instant params :end-valid-time)
     :start-tx (tx :start-tx-id :start-tx-time)
     :end-tx (tx :end-tx-id :end-tx-time)}))

(defn- with-docs
  "The rows of a history, each with its document."
  [source rows]
  (let [hashes (into #{} (comp (map ::xt/content-hash) (remove #{(codec/new-id codec/nil-id-buffer)})) rows)
        docs (db/fetch-docs (:document-store source) hashes)]
    (map #(assoc % ::xt/doc (some-> (get docs (::xt/content-hash %)) codec/crux->xt)) rows)))

(defn- history
  "The rows of an entity's history. With `partial`, those that fit the bound, as 206 when more follow."
  [source eid params {:keys [max-rows-bytes]}]
  (let [order (required params :sort-order (parsed params :sort-order #(case % "asc" :asc "desc" :desc) "asc or desc"))
        fits? (fits-within max-rows-bytes)
        whole? (volatile! true)]
    ;; XTDB takes the documents of 100 versions and more at a time.
    (with-open [^java.io.Closeable found (xt/open-entity-history source eid order (history-options params))]
      (let [rows (into []
                       (comp (partition-all batch)
                             (mapcat #(cond->> % (truth params :with-docs) (with-docs source)))
                             (take-while #(or (fits? %) (vreset! whole? false))))
                       (iterator-seq found))]
        (cond
          @whole? [200 rows]
          (truth params :partial) [206 rows]
          :else (throw (too-many-bytes max-rows-bytes)))))))

(defn- entity [{:keys [node limits]} params _]
  (let [eid (entity-id params)
        db (xt/db node (basis params))]
    (if (truth params :history)
      (history db eid params limits)
      (if-some [doc (xt/entity db eid)]
        [200 doc]
        [404 {:error (str (shown eid) " entity not found")}]))))

(defn- entity-tx [{:keys [node]} params _]
  (let [eid (entity-id params)]
    (if-some [tx (xt/entity-tx (xt/db node (basis params)) eid)]
      [200 tx]
      [404 {:error (str (shown eid) " entity-tx not found")}])))

(defn- read-query [text]
  (try
    (codec/read-edn-string-with-readers text)
    (catch Exception failure
      (throw (err/illegal-arg :malformed-query {::err/message (str "the query is no EDN: " (.getMessage failure))})))))

(defn- rows
  "Every row of a query's answer. A query that is cancelled stops at its next row. One row is answered whatever its size."
  [db query in-args {:keys [max-rows max-rows-bytes]}]
  (with-open [^java.io.Closeable answer (xt/open-q* db query (object-array in-args))]
    (let [found (into [] (comp (take (inc (long max-rows)))
                               (require-fitting max-rows-bytes)
                               (map (fn [row]
                                      (when (Thread/interrupted) (throw (InterruptedException.)))
                                      row)))
                      (iterator-seq answer))]
      (when (> (count found) (long max-rows))
        (throw (err/illegal-arg :too-many-rows {::err/message (str "more than " max-rows " rows: give a :limit")})))
      found)))

(defn- query [{:keys [node limits ^ThreadPoolExecutor queries]} params request]
  (let [{:keys [query in-args]} (transit-> (body-of request (:max-body-bytes limits)))
        query (cond-> (required params :query query) (string? query) read-query)
        asked (when (map? query) (:timeout query))
        timeout (min (long (if (nat-int? asked) asked (:query-ms limits))) (long (:query-ms limits)))
        ;; The bound is kept out here: a query's own timeout interrupts whatever its thread does next.
        query (cond-> query (map? query) (-> (dissoc :timeout) (update :batch-size #(min batch (or % batch)))))
        running (.submit queries ^Callable #(rows (xt/db node (basis params)) query in-args limits))]
    (try
      [200 (.get ^Future running timeout TimeUnit/MILLISECONDS)]
      (catch TimeoutException _
        (.cancel ^Future running true)
        (throw (TimeoutException. (str "Query timed out after " timeout " ms."))))
      (catch ExecutionException failure
        (throw (or (.getCause failure) failure))))))

(defn- latest [read missing]
  (fn [{:keys [node]} _ _]
    (if-some [tx (read node)] [200 tx] [404 {:error missing}])))

(defn- tx-log [{:keys [node limits]} params _]
  (with-open [^java.io.Closeable log (xt/open-tx-log node (whole params :after-tx-id) (boolean (truth params :with-ops?)))]
    [200 (into []
               (comp (take (or (whole params :limit) Long/MAX_VALUE)) (require-fitting (:max-rows-bytes limits)))
               (iterator-seq log))]))

(def ^:private routes
  {"status" {"GET" status}
   "submit-tx" {"POST" submit}
   "await-tx" {"GET" await-tx}
   "await-tx-time" {"GET" await-tx-time}
   "tx-committed" {"GET" committed}
   "entity" {"GET" entity}
   "entity-tx" {"GET" entity-tx}
   "query" {"POST" query}
   "latest-completed-tx" {"GET" (latest xt/latest-completed-tx "No latest-completed-tx found.")}
   "latest-submitted-tx" {"GET" (latest xt/latest-submitted-tx "No latest-submitted-tx found.")}
   "sync" {"GET" synced}
   "tx-log" {"GET" tx-log}})

;; Answers

(defn- failure-of
  "The status and the value that tell of a failure, in the words of XTDB's own server and more."
  [^Throwable failure operation]
  (let [data (ex-data failure)
        known? (or (instance? xtdb.IllegalArgumentException failure) (instance? NodeOutOfSyncException failure))
        status (cond (::status data) (::status data)
                     known? 400
                     (instance? RejectedExecutionException failure) 503
                     :else 500)]
    [status (merge {:type "exception"}
                   (dissoc data ::status)
                   {:class (.getName (class failure))
                    :message (or (.getMessage failure) (.getName (class failure)))
                    :operation operation})]))

(defn- write-answer [^Response response ^Callback callback status ^String type ^bytes body]
  (.setStatus response (int status))
  (doto ^HttpFields$Mutable (.getHeaders response)
    (.put HttpHeader/CONTENT_TYPE type)
    (.put HttpHeader/CONTENT_LENGTH (long (alength body))))
  (.write response true (ByteBuffer/wrap body) callback))

(defn- encoded
  "The answer as bytes, complete before any of it is sent. An answer that cannot be written is a failure like others."
  [[status value] operation]
  (try
    [status (->transit value)]
    (catch Throwable failure
      (let [[status value] (failure-of failure operation)]
        [status (->transit value)]))))

(defn- answer [service handle operation request params]
  (try
    (await-before service params)
    (let [[status value] (handle service params request)]
      [status (cond-> value (= 404 status) (assoc :class "absent" :message (:error value) :operation operation))])
    (catch Throwable failure
      (when-not (or (ex-data failure) (instance? TimeoutException failure))
        (log/warn failure "failed:" operation))
      (failure-of failure operation))))

(defn- plain [response callback status ^String text]
  (write-answer response callback status "text/plain;charset=utf-8" (.getBytes (str text "\n") "UTF-8")))

(defn- serve [service ^Request request ^Response response ^Callback callback]
  (let [path (Request/getPathInContext request)
        method (.getMethod request)
        operation (str method " " path)
        handlers (when (string/starts-with? path "/_xtdb/") (get routes (subs path 7)))]
    (if-let [handle (get handlers method)]
      (let [found (try (parameters request) (catch Exception failure failure))
            [status body] (encoded (if (instance? Throwable found)
                                     [400 (second (failure-of found operation))]
                                     (answer service handle operation request found))
                                   operation)]
        (write-answer response callback status media-type body))
      (if handlers
        (do (.put ^HttpFields$Mutable (.getHeaders response) HttpHeader/ALLOW ^String (string/join ", " (keys handlers)))
            (plain response callback 405 (str "method not allowed: " operation)))
        ;; No transit here: a 404 in transit says that what was asked for is not there.
        (plain response callback 404 (str "no such operation: " operation))))
    true))

(defn- handler [service]
  (proxy [Handler$Abstract] []
    (handle [request response callback] (serve service request response callback))))

(def ^:private malformed-handler
  (reify Request$Handler
    (handle [_ request response callback]
      (let [^Request request request
            cause (.getAttribute request ErrorHandler/ERROR_EXCEPTION)
            message (or (.getAttribute request ErrorHandler/ERROR_MESSAGE) "the request is malformed")]
        (write-answer response callback (.getStatus ^Response response) media-type
                      (->transit {:type "exception"
                                  :class (if cause (.getName (class cause)) "org.eclipse.jetty.http.BadMessageException")
                                  :message (str message)
                                  :operation (str (.getMethod request) " " (.getHttpURI request))}))
        true))))

;; Documents in memory

(deftype ^:private Held [value ^long weight])

(defn ->document-cache
  "An LRU cache of documents that takes at most an eighth of the heap. XTDB's own caches hold 131,072 documents of any
  size: more than a heap of some gigabytes."
  ^xtdb.cache.ICache [_]
  (let [most (quot (.maxMemory (Runtime/getRuntime)) 8)
        held (LinkedHashMap. 1024 0.75 true)
        total (long-array 1)
        add! (fn [^long bytes] (aset total 0 (+ (aget total 0) bytes)))
        trim! (fn []
                (let [entries (.iterator (.entrySet held))]
                  (while (and (> (aget total 0) most) (.hasNext entries))
                    (add! (- (.weight ^Held (.getValue ^Map$Entry (.next entries)))))
                    (.remove entries))))]
    (reify ICache
      (computeIfAbsent [this k stored-key f]
        (if-some [found (.valAt this k)]
          found
          (let [k (stored-key k)
                value (f k)
                bytes (+ 256 (weight value))]
            (locking held
              (when-some [former (.put held k (Held. value bytes))]
                (add! (- (.weight ^Held former))))
              (add! bytes)
              (trim!))
            value)))
      (evict [_ k]
        (locking held
          (when-some [former (.remove held k)]
            (add! (- (.weight ^Held former))))))
      (valAt [this k] (.valAt this k nil))
      (valAt [_ k default]
        (if-some [found (locking held (.get held k))]
          (.value ^Held found)
          default))
      (count [_] (.size held))
      (close [_]
        (locking held
          (.clear held)
          (aset total 0 0))))))

;; Configuration

(defn- reading [data-dir]
  {;; XTDB takes text for a URI, in which a path with a space is none.
   'ctxd/data (fn [name] (io/file data-dir name))
   'ctxd/env (fn [given]
               (let [[name default] (if (vector? given) given [given])]
                 (or (System/getenv name) default
                     (throw (IllegalArgumentException. (str "the environment variable " name " is not set"))))))
   'ctxd/env-number (fn [[name default]] (if-let [given (System/getenv name)] (Long/parseLong given) default))})

(defn- read-config [file data-dir]
  (edn/read-string {:readers (reading data-dir)} (slurp (io/file file))))

(defn- store-kind
  "What a golden store keeps its data in, and whether it is on disk when it says so."
  [config store]
  (let [part (get config store)
        kv (get part :kv-store)
        kv (if (keyword? kv) (get config kv) kv)]
    (cond
      (nil? part) ["memory" false]
      kv [(str (:xtdb/module kv)) (true? (:sync? kv))]
      :else [(str (:xtdb/module part)) true])))

(defn- about [config]
  (let [stores (map #(store-kind config %) [:xtdb/tx-log :xtdb/document-store])]
    {:ctxd.node/stores (mapv first stores)
     :ctxd.node/synced? (every? second stores)
     :ctxd.node/functions-off? (= [] (get-in config [:xtdb/query-engine :fn-allow-list]))
     :ctxd.node/java (System/getProperty "java.version")
     :ctxd.node/pid (.pid (java.lang.ProcessHandle/current))}))

;; The socket

(defn- quit [code message]
  (binding [*out* *err*] (println (str "ctxd-node: " message)) (flush))
  (.halt (Runtime/getRuntime) code))

(defn- answered? [^Path path]
  (try
    (with-open [channel (SocketChannel/open StandardProtocolFamily/UNIX)]
      (.connect channel (UnixDomainSocketAddress/of path)))
    (catch java.io.IOException _ false)))

(defn- claim
  "Make the socket's path this process's own: a live socket is refused, one that a dead process left is removed."
  [^Path path]
  (let [lock (FileChannel/open (.resolveSibling path (str (.getFileName path) ".lock"))
                               (into-array OpenOption [StandardOpenOption/CREATE StandardOpenOption/WRITE]))]
    (when-not (.tryLock lock)
      (quit 69 (str "another node holds " path)))
    (when (Files/exists path (into-array LinkOption [LinkOption/NOFOLLOW_LINKS]))
      (when-not (.isOther (Files/readAttributes path java.nio.file.attribute.BasicFileAttributes
                                                ^"[Ljava.nio.file.LinkOption;" (into-array LinkOption [LinkOption/NOFOLLOW_LINKS])))
        (quit 73 (str path " is there and is no socket; it is left alone")))
      (when (answered? path)
        (quit 69 (str "another program answers on " path)))
      (Files/delete path))
    lock))

(defn- http [limits]
  (HttpConnectionFactory. (doto (HttpConfiguration.)
                            (.setRequestHeaderSize (int (:max-header-bytes limits)))
                            (.setSendServerVersion false)
                            (.setSendDateHeader false))))

(defn- connector [^Server server limits {:keys [socket tcp]}]
  (let [factories (into-array ConnectionFactory [(http limits)])]
    (if tcp
      (let [[host port] (string/split tcp #":(?=[0-9]+$)")]
        (doto (ServerConnector. server ^"[Lorg.eclipse.jetty.server.ConnectionFactory;" factories)
          (.setHost host)
          (.setPort (Integer/parseInt port))))
      (doto (UnixDomainServerConnector. server ^"[Lorg.eclipse.jetty.server.ConnectionFactory;" factories)
        (.setUnixDomainPath (.toPath (io/file socket)))
        (.setAcceptQueueSize 128)))))

(defn- start-server ^Server [service limits {:keys [socket tcp] :as options}]
  (let [server (Server. (doto (QueuedThreadPool. (int (:threads limits))) (.setName "http")))]
    (.addConnector server (connector server limits options))
    (.setHandler server ^Handler$Abstract (handler service))
    (.setErrorHandler server malformed-handler)
    (.start server)
    (when-not tcp
      (Files/setPosixFilePermissions (.toPath (io/file socket)) (PosixFilePermissions/fromString "rw-------")))
    server))

;; The program

(defn- options-of [args]
  (when-not (and (even? (count args)) (every? #(string/starts-with? % "--") (take-nth 2 args)))
    (quit 64 "usage: --config FILE --data DIRECTORY (--socket PATH | --tcp HOST:PORT) [--limits EDN]"))
  (into {} (map (fn [[name value]] [(keyword (subs name 2)) value])) (partition 2 args)))

(defn- thread-pool [limits]
  (let [threads (int (:query-threads limits))]
    (ThreadPoolExecutor. threads threads 1 TimeUnit/MINUTES (ArrayBlockingQueue. (int (:queued-queries limits))))))

(defn- first-sync
  "Have what the log already holds indexed before the first request, unless that takes long."
  [node {:keys [first-sync-ms]}]
  (try
    (xt/sync node (Duration/ofMillis first-sync-ms))
    (catch TimeoutException _
      (log/warn "the index is behind the log; serving while it catches up"))))

(defn- stop [^Server server ^java.io.Closeable node socket]
  (try
    (.stop server)
    (.close node)
    (finally
      (when socket (Files/deleteIfExists (.toPath (io/file socket)))))))

(defn- configured [file data-dir]
  (try
    (read-config file data-dir)
    (catch Exception failure
      (quit 78 (str "the configuration " file " cannot be read: " (.getMessage failure))))))

(defn- run [{:keys [config data socket tcp limits] :as options}]
  (let [limits (merge defaults (some-> limits edn/read-string))
        lock (when-not tcp (claim (.toPath (.getAbsoluteFile (io/file socket)))))
        config (configured config data)
        node (xt/start-node config)
        service {:node node
                 :limits limits
                 :about (about config)
                 :awaits (Semaphore. (int (:max-awaits limits)))
                 :queries (thread-pool limits)}]
    (first-sync node limits)
    (let [server (start-server service limits options)]
      (.addShutdownHook (Runtime/getRuntime) (Thread. ^Runnable #(do (stop server node socket) (some-> ^FileChannel lock .close))))
      (println (str "ready " (if tcp (str "http://" tcp) (str "unix:" socket))))
      (flush)
      (.join server))))

(defn -main
  "Serve until SIGTERM. Exit codes: 64 usage, 69 the socket is in use, 73 it cannot be made, 78 the configuration; 1 for a
  start that failed otherwise, and may go well another time."
  [& args]
  (try
    (run (options-of args))
    (catch Throwable failure
      (quit 1 (str "the node does not start: "
                   (string/join ": " (map #(str (.getName (class %)) " " (.getMessage ^Throwable %))
                                          (take 4 (take-while some? (iterate #(.getCause ^Throwable %) failure))))))))))
