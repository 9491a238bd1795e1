// What the browser keeps.
//
//   localStorage    deepinfer.chats     [{id, title, messages}], newest first
//                   deepinfer.settings  {name: text} of the settings form
//                   deepinfer.theme     "light", "dark", or nothing: as the system
//   sessionStorage  deepinfer.key       the API key: gone with the tab
//
// A message: {role: "user", content} | {role: "tool", tool_call_id, content}
//   | {role: "assistant", content, reasoning, calls: [{id, name, arguments}], finish, error, figures, tokens}
// `tokens` (probabilities) stay in memory: they are many times larger than the text.

const read = (key, otherwise) => {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
};

export const loadChats = () => read("deepinfer.chats", []);

// False if the browser has no room for them.
export function saveChats(chats) {
  const withoutTokens = (name, value) => (name === "tokens" ? undefined : value);
  try {
    localStorage.setItem("deepinfer.chats", JSON.stringify(chats, withoutTokens));
    return true;
  } catch {
    return false;
  }
}

export const newChat = () => ({ id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", messages: [] });

export const loadSettings = () => read("deepinfer.settings", {});
export const saveSettings = (settings) => localStorage.setItem("deepinfer.settings", JSON.stringify(settings));

export const loadTheme = () => read("deepinfer.theme", null);
export const saveTheme = (theme) => localStorage.setItem("deepinfer.theme", JSON.stringify(theme));

export const apiKey = () => sessionStorage.getItem("deepinfer.key") ?? "";
export const saveApiKey = (key) => sessionStorage.setItem("deepinfer.key", key);
